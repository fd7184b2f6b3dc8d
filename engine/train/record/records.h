// Accumulates statistics and writes them to metrics.jsonl and metrics.csv.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
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

// metrics.csv: the lines of metrics.jsonl as a table.

// `own`: the names of the program's own metrics, which have the last columns.
using OwnNames = std::vector<std::string>;

std::string csv_header(const OwnNames& own = {});  // the names of the columns, with a line end
// Empty for a record that is neither of training nor of an evaluation. A column that the record lacks is empty.
std::string csv_row(const nlohmann::ordered_json& record, const OwnNames& own = {});
// The whole table, from the text of metrics.jsonl.
std::string csv_table(const std::string& metrics_jsonl, const OwnNames& own = {});

}  // namespace dp
