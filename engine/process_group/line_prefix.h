// Forwards output line by line, with a prefix before each line.
#pragma once

#include <string>

namespace dp::process_group {

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

}  // namespace dp::process_group
