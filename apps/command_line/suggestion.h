// The option that was probably meant.
#pragma once

#include <string>
#include <vector>

namespace command_line {

// Returns the name that needs the fewest typing corrections to become the given word. If all names differ too much,
// returns the shortest option that contains the words of the given one: "--model-ema" for "--ema". If no option
// contains them, returns an empty text.
std::string closest(const std::string& word, const std::vector<std::string>& names);

// "; did you mean NAME?", or empty.
std::string suggestion(const std::string& word, const std::vector<std::string>& names);

}  // namespace command_line
