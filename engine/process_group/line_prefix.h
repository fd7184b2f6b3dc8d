// Output passed on line by line with a word before each line.
#pragma once

#include <string>

namespace dp::process_group {

class LinePrefix {
 public:
  LinePrefix(std::string prefix, int to) : prefix_(std::move(prefix)), to_(to) {}
  bool pass_on(int from);  // what can be read now; false at the end
  void finish();           // what has no line's end yet

 private:
  std::string prefix_;
  int to_;
  std::string line_;
};

void write_line(int to, const std::string& text);

}  // namespace dp::process_group
