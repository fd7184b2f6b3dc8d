// What a run records of its data set, and its comparison with the data set of a checkpoint.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "dp/checkpoint.h"
#include "dp/dataset.h"
#include "dp/process_group.h"

namespace dp {

// `train` is null for an evaluation.
DataIdentity identity_of(const Dataset* train, const Dataset& test);

// The names as DataIdentity has them.
std::vector<std::string> recorded_names(const Dataset& dataset);

// Error(data) with the names that differ, unless both lists are equal or one is empty. `source` begins the message:
// "checkpoint 'run'". `by_position`: only a notice, if the lists have equal lengths and every name that is in both has
// the same position.
void require_same_classes(const std::string& source, const std::vector<std::string>& had,
                          const std::vector<std::string>& now, bool by_position,
                          const std::function<void(const std::string&)>& notice);

// Notices about images that differ from those of the checkpoint. `inside_epoch`: the run continues in the middle of an
// epoch.
std::vector<std::string> changed_samples(const DataIdentity& had, const DataIdentity& now, bool inside_epoch);

// Error(data) if this rank's data set differs from rank 0's.
void require_same_data(ProcessGroup& group, const DataIdentity& mine);

// The members of DataIdentity for config.toml and env.json: the lists only of up to 1,000 classes.
nlohmann::ordered_json to_record(const DataIdentity& data);

}  // namespace dp
