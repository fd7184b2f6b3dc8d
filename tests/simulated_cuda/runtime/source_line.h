// Where in the sources a piece of the program comes from.
#pragma once

#include <string>

namespace dp::simt {

// " (samples.cu:42)", found by binutils' addr2line; empty for null and where that says nothing.
std::string source_line(const void* code);

}  // namespace dp::simt
