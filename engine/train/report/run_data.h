// The data of a run, read from its folder.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/train/report/predictions.h"

namespace dp {

struct Point {
  double x = 0, y = 0;
};
using Curve = std::vector<Point>;

struct RunData {
  std::string name;                                          // of the folder
  nlohmann::json summary;                                    // null while the run goes on, or if it failed
  nlohmann::ordered_json parts;                              // of env.json
  std::vector<std::pair<std::string, std::string>> options;  // of the latest config file, as text
  std::vector<nlohmann::json> evaluations, resumptions;      // lines of metrics.jsonl
  std::map<std::string, Curve, std::less<>> training;        // each number of its training lines, over their steps
  // Seconds of each phase in the recorded steps, by replica.
  std::vector<std::vector<std::pair<std::string, double>>> phase_sums;
  std::optional<PredictionsRecord> predictions;  // of the last evaluation that was recorded

  std::string end() const;                            // of the summary; "-": none
  std::string option(const std::string& name) const;  // empty: not recorded
  const Curve& curve(const char* field) const;        // of the training lines; may be empty
  // Of the evaluations of the weights, or of their average.
  Curve test_curve(const char* field, bool average) const;
  // phase_sums, but "waiting" without the time for data.
  std::vector<std::vector<std::pair<std::string, double>>> phases() const;
  double loading_seconds() const;  // time spent waiting for data
};

// Error(data) if the folder has no metrics.jsonl. Lines and files that cannot be read are left out.
RunData read_run(const std::string& folder);

}  // namespace dp
