// Pages about training runs and measurements.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace dp {

// Writes one self-contained HTML page about the runs in these folders: curves, times, options and environment;
// several runs are laid side by side. Error(data) if a folder holds no run, Error(io) if the file cannot be written.
void write_report(const std::vector<std::string>& run_folders, const std::string& file);

// A few lines about a run, while it runs or afterwards: whether it runs, its steps, rate and time left, the last
// evaluation, the last checkpoint, and what calls for attention. Only reads. Error(data) if the folder holds no run.
std::string describe_run(const std::string& run_folder);

// Environment variables that describe an ended run: names and values. `exit_status` is that of its process. DP_RUN is
// the folder, DP_STATUS is complete, interrupted or failed. DP_JSON is one JSON object with all of them. Values that
// the run has not recorded are left out.
std::vector<std::pair<std::string, std::string>> variables_of_end(const std::string& run_folder, int exit_status);

// The step of the run's checkpoint `last`, or -1 without one. Does not verify checksums.
std::int64_t saved_step(const std::string& run_folder);

struct LastStart {
  std::size_t starts = 0;         // of the run, so far
  std::vector<std::string> gpus;  // of the last one: UUIDs, each once, in the order of the replicas
};
LastStart last_start(const std::string& run_folder);

// Adds a failure of the run's process to env.json: the present time, the step of the last checkpoint, and `how`, such
// as "signal 9 (Killed)". Does nothing if the run has not begun. Error(io)
void record_failure(const std::string& run_folder, const std::string& how);

// The page about a report of dp_bench, from its JSON. `text`: what is shown where scripts are not allowed. Error(usage)
// unless `json` is a JSON object.
std::string report_page(const std::string& title, const std::string& text, const std::string& json);

}  // namespace dp
