// Error messages about files: always one printable line, whatever bytes the file contains.
#pragma once

#include <string>
#include <string_view>

namespace dp {

// At most `longest` bytes of an external text; control characters and bytes above 126 become \xNN.
std::string excerpt(std::string_view text, std::size_t longest = 80);

// Error(data): "<path>: <fault>".
[[noreturn]] void throw_data(std::string_view path, const std::string& fault);
// The remedy for an errno of a file operation, such as "; free some space". Empty if there is none.
const char* remedy_of(int error);
// Error(data) and Error(io): "<path>: <doing> failed: <strerror>". Error(io) also has the remedy.
[[noreturn]] void throw_data_errno(std::string_view path, const std::string& doing, int error);
[[noreturn]] void throw_io_errno(std::string_view path, const std::string& doing, int error);

}  // namespace dp
