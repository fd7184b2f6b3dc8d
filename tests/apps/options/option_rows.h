// A table of dp_train's options: a non-default value for each, and the effect that it must have.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "apps/run_program.h"

namespace dp::test {

// The results of a run.
struct Ran {
  Outcome outcome;
  std::string folder;            // the run's folder
  std::set<std::string> config;  // lines of config.toml; what automatic choices became: "resolved: key = value"
  nlohmann::json summary = nlohmann::json::object();
  std::vector<nlohmann::json> metrics;

  std::string weights() const { return summary.value("weights_sha256", ""); }
  bool has(const std::string& file) const;
  std::string text(const std::string& file) const;
  std::int64_t lines(const std::string& kind) const;  // in metrics.jsonl
};

// The small base runs that options modify.
enum class Setting {
  mlp,         // 8 steps on 64 drawn digits
  convnet,     // dropout, convolutions
  batch_norm,  // batch normalisation
  synthetic,   // images of any shape
  crops,       // augmented images
  targets,     // with two targets each, 2 steps
};

enum class Weights { same, other };

// Compares a run of the setting with `also` against one with `also` and `arguments`. They must differ as the row says;
// config.toml must not differ in anything else.
struct OptionRow {
  std::string option;  // its first long name in --help
  Words arguments;     // "@" stands for the folder of the test data
  // The lines of config.toml that only the second run has. "-key": a key that only the first run has.
  std::vector<std::string> config;
  Weights weights;
  Setting setting = Setting::mlp;
  Words also{};
  std::function<void(const Ran& base, const Ran& run)> check{};  // checks other effects
  Words variables{};
  int base_code = 0, code = 0;
};

std::vector<OptionRow> training_rows();
std::vector<OptionRow> parallel_rows();
std::vector<OptionRow> data_rows();
std::vector<OptionRow> augmentation_rows();
std::vector<OptionRow> run_rows();

// An option that trains nothing, or that this machine refuses. If the option were ignored, the outcome would differ.
struct AloneRow {
  std::string option;
  Words arguments;
  int code;
  std::vector<std::string> fragments;  // in stdout and stderr together
  std::vector<std::string> variables{};
};
std::vector<AloneRow> alone_rows();

Words setting_words(Setting setting);
// Makes a folder for Setting::targets: eight images with two targets each, 0 or 1.
void write_targets(const std::string& folder);
// Appends `more` to `words`. An option in both keeps its place and takes the value from `more`.
Words merged(Words words, const Words& more);

}  // namespace dp::test
