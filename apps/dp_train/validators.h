// Validators of numeric flags. Their messages state the range.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace dp_train {

CLI::Validator whole(std::int64_t lowest, std::int64_t highest);  // a decimal integer
CLI::Validator real(double lowest, double highest);               // finite, both ends included
CLI::Validator below(double lowest, double limit);                // limit excluded, also after rounding to float
CLI::Validator positive(double highest);                          // 0 excluded
CLI::Validator seed_number();
CLI::Validator not_empty(const std::string& what);  // what: the remedy in the message, e.g. "a file"

}  // namespace dp_train
