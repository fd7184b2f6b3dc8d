// Maps a code address to its source line.
#pragma once

#include <string>

namespace dp::simt {

// " (samples.cu:42)", from binutils' addr2line. Empty for null and for unknown addresses.
std::string source_line(const void* code);

}  // namespace dp::simt
