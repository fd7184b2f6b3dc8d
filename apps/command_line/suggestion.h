// The option that was probably meant.
#pragma once

#include <string>
#include <vector>

namespace command_line {

// The name that `word` probably means, or empty: the one with the fewest typing errors, or else the shortest option
// that shares all words with it ("--ema" means "--model-ema").
std::string closest(const std::string& word, const std::vector<std::string>& names);

// "; did you mean NAME?", or empty.
std::string suggestion(const std::string& word, const std::vector<std::string>& names);

}  // namespace command_line
