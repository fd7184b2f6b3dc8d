// Records a run's options in config.toml and its environment in env.json.
#pragma once

#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "dp/trainer.h"

namespace dp {

std::string local_time(std::time_t time);  // ISO 8601, with the UTC offset

// env.json: when, where and with what each part of a run was made. A resumed run adds a part.

// One part, begun now: time, command line, program, host, libraries, devices and data set.
nlohmann::ordered_json environment_of(const TrainerOptions& options, const DatasetPair& data, const DataParallel& net);

// The same in comments at the head of config.toml.
std::string provenance_comment(const nlohmann::ordered_json& part);

// Adds the memory of each replica by purpose, in bytes. Call it when all memory is allocated.
void add_memory(nlohmann::ordered_json& part, const DataParallel& net);

// Adds the part to env.json in the run's folder, or replaces its last part, which has ended. Parts of an unreadable
// file are lost. Error(io)
void add_environment(const std::string& folder, const nlohmann::ordered_json& part);
void end_environment(const std::string& folder, nlohmann::ordered_json part, const std::string& how);

// The options of a run as a record: config.toml in its folder, JSON in its checkpoints. Keys are the names of the
// command-line options.

// The options as they were given, in one object. Its last member, "resolved", is an object too: the devices, and what
// automatic choices have become.
nlohmann::ordered_json run_config(const std::string& model, const TrainerOptions& given,
                                  const TrainerOptions& resolved);

// Strings, booleans, numbers and arrays of them; then objects of such, as tables.
std::string to_toml(const nlohmann::ordered_json& config);

// An option of a resumed run that differs from the recorded one. null: not set.
struct ChangedOption {
  std::string name;
  nlohmann::ordered_json before, now;
};
// In the order of `now`, without "resolved".
std::vector<ChangedOption> changed_options(const nlohmann::ordered_json& before, const nlohmann::ordered_json& now);

// Copies --init and --init-partial, which only the first start was given.
void continue_record(nlohmann::ordered_json& config, const nlohmann::ordered_json& before);

// "lr 0.01 -> 0.05 (command line)"
std::string to_text(const ChangedOption& change, const std::map<std::string, std::string>& given_by);

// The change of the option "devices"; empty if they are equal.
std::optional<ChangedOption> changed_devices(const nlohmann::ordered_json& before, const nlohmann::ordered_json& now);

// The option's value, as resolved if it was automatic; null if it is not recorded.
nlohmann::json value_in_effect(const nlohmann::json& config, const std::string& name);

}  // namespace dp
