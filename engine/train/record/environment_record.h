// env.json: when, where and with what each part of a run was made. A resumed run adds a part.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dp/trainer.h"

namespace dp {

// One part, begun now: time, command line, program, host, libraries, devices and data set.
nlohmann::ordered_json environment_of(const TrainerOptions& options, const DatasetPair& data,
                                      const std::vector<std::string>& devices);

// The same in comments at the head of config.toml.
std::string provenance_comment(const nlohmann::ordered_json& part);

// Adds the memory of each replica by purpose, in bytes. Call it when all memory is allocated.
void add_memory(nlohmann::ordered_json& part, const DataParallel& net);

// Adds the part to env.json in the run's folder, or replaces its last part, which has ended. Parts of an unreadable
// file are lost. Error(io)
void add_environment(const std::string& folder, const nlohmann::ordered_json& part);
void end_environment(const std::string& folder, nlohmann::ordered_json part, const std::string& how);

}  // namespace dp
