// Options from a TOML file.
#pragma once

#include <dp/run_options.h>
#include <string>
#include <vector>

namespace command_line {

// The options at the top of the file; the table [resolved] is ignored. dp::Error(usage) if the file cannot be read,
// is nested deeply, or holds another table or a value of an unsupported type.
std::vector<dp::RecordedOption> read_config_file(const std::string& path);

}  // namespace command_line
