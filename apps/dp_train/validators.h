// Checks of numbers on the command line, with messages that name the range.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace dp_train {

CLI::Validator whole(std::int64_t lowest, std::int64_t highest);  // decimal digits only
CLI::Validator real(double lowest, double highest);               // finite, both ends included
CLI::Validator below(double lowest, double limit);                // the limit excluded, also once rounded to float
CLI::Validator positive(double highest);                          // 0 excluded
CLI::Validator seed_number();
CLI::Validator not_empty(const std::string& what);  // what to name instead: "a file"

}  // namespace dp_train
