// What a program prints must arrive.
#pragma once

namespace dp_train {

// Writes stdout out. 0, or where that failed 7 and a line of that severity on stderr. A reader that has left is no failure.
int finish_output(const char* severity = "error");

}  // namespace dp_train
