// Output and suspension of launched ranks.
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

// Suspends another process group together with this process. SIGTSTP (Ctrl-Z) stops `group` first, then this process.
// When this process continues, `group` continues too. Only one object may exist at a time. It has no effect if the
// program handles or ignores SIGTSTP.
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
