// A page about one or several training runs.
#pragma once

#include <string>
#include <vector>

namespace dp {

// Writes one self-contained HTML page about the runs in these folders: curves, times, options and environment;
// several runs are laid side by side. Error(data) if a folder holds no run, Error(io) if the file cannot be written.
void write_report(const std::vector<std::string>& run_folders, const std::string& file);

}  // namespace dp
