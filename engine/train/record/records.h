// Accumulation of statistics, and their lines in metrics.jsonl.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "dp/trainer.h"
#include "engine/train/record/run_config.h"

namespace dp {

void add(Stats& sum, const Stats& more);
void add(std::vector<PhaseTimes>& sum, const std::vector<PhaseTimes>& more);  // replica by replica

nlohmann::ordered_json to_record(const StepReport& report);
nlohmann::ordered_json to_record(const EvalReport& report);
// The history of a run: where it was resumed, and with which other options.
nlohmann::ordered_json to_record(const TrainState& resumed, const std::string& folder,
                                 const std::vector<ChangedOption>& changes,
                                 const std::map<std::string, std::string>& given_by);

// The phases with their names, in the order of a step.
struct Phase {
  const char* name;
  double PhaseTimes::*seconds;
};
const std::vector<Phase>& phases();

}  // namespace dp
