// The option that was probably meant.
#pragma once

#include <string>
#include <vector>

namespace command_line {

// The name that is closest to `word`, or empty if none is close.
std::string closest(const std::string& word, const std::vector<std::string>& names);

// "; did you mean NAME?", or empty.
std::string suggestion(const std::string& word, const std::vector<std::string>& names);

}  // namespace command_line
