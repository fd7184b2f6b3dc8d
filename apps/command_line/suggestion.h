// The option that was probably meant.
#pragma once

#include <string>
#include <vector>

namespace command_line {

// Returns the name with the fewest typing errors. If no name is close, returns the shortest option that contains the
// same words ("--model-ema" for "--ema"). Returns an empty text if there is none.
std::string closest(const std::string& word, const std::vector<std::string>& names);

// "; did you mean NAME?", or empty.
std::string suggestion(const std::string& word, const std::vector<std::string>& names);

}  // namespace command_line
