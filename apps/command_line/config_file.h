// Options from a TOML file.
#pragma once

#include <dp/run_options.h>
#include <string>
#include <vector>

namespace command_line {

// The options at the top of the file; tables, such as [resolved], are left out. dp::Error(usage) if it cannot be read
// or holds a value that is no option's.
std::vector<dp::RecordedOption> read_config_file(const std::string& path);

}  // namespace command_line
