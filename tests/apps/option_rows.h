// A table of dp_train's options: each one away from its default, and what that must change.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "apps/run_program.h"

namespace dp::test {

// What a run left.
struct Ran {
  Outcome outcome;
  std::string folder;            // the run's
  std::set<std::string> config;  // lines of config.toml
  nlohmann::json summary = nlohmann::json::object();
  std::vector<nlohmann::json> metrics;

  std::string weights() const { return summary.value("weights_sha256", ""); }
  bool has(const std::string& file) const;
  std::string text(const std::string& file) const;
  std::int64_t lines(const std::string& kind) const;  // of metrics.jsonl
};

// The small runs that options are compared with.
enum class Setting {
  mlp,        // 8 steps on 64 drawn digits
  convnet,    // dropout, convolutions
  residual,   // batch normalisation
  synthetic,  // images of any shape
  crops,      // images that are augmented
};

enum class Weights { same, other };

// A run of the setting with `also`, and one with `also` and `arguments`: they differ in what the row says, and config.toml in nothing else.
struct OptionRow {
  std::string option;               // its first long name, as --help has it
  Words arguments;                  // "@" stands for a folder that the test's data are in
  std::vector<std::string> config;  // the lines of config.toml that the other run has not
  Weights weights;
  Setting setting = Setting::mlp;
  Words also{};
  std::function<void(const Ran& base, const Ran& run)> check{};  // of what else it changes
  Words variables{};
  int base_code = 0, code = 0;
};

std::vector<OptionRow> training_rows();
std::vector<OptionRow> parallel_rows();
std::vector<OptionRow> data_rows();
std::vector<OptionRow> run_rows();

// An option after which nothing is trained, or that this machine refuses: where it goes unread the outcome is another.
struct AloneRow {
  std::string option;
  Words arguments;
  int code;
  std::vector<std::string> fragments;  // of stdout and stderr together
  std::vector<std::string> variables{};
};
std::vector<AloneRow> alone_rows();

Words setting_words(Setting setting);
// `more` put behind `words`; an option that both have keeps its place and takes the value of `more`.
Words merged(Words words, const Words& more);

}  // namespace dp::test
