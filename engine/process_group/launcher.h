// What a launcher of ranks needs: prefixed output, and Ctrl-Z for all ranks.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>

namespace dp::process_group {

// Forwards output line by line, with a prefix before each line.
class LinePrefix {
 public:
  LinePrefix(std::string prefix, int to) : prefix_(std::move(prefix)), to_(to) {}
  bool pass_on(int from);  // forwards available input; false at its end
  void finish();           // forwards an incomplete last line

 private:
  std::string prefix_;
  int to_;
  std::string line_;
};

void write_line(int to, const std::string& text);

// Ctrl-Z for a program whose work runs in processes of another process group.
// During its lifetime, a SIGTSTP to this process first stops `group`; the group continues when this process does. At
// most one object at a time. Without effect if the program handles or ignores SIGTSTP.
class SuspendTogether {
 public:
  explicit SuspendTogether(pid_t group);
  ~SuspendTogether();
  SuspendTogether(const SuspendTogether&) = delete;
  SuspendTogether& operator=(const SuspendTogether&) = delete;

 private:
  struct sigaction before_ {};
};

}  // namespace dp::process_group
