// The subcommand predict: what a trained network finds in images.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace dp_train {

struct Command;
struct Signals;

// Options that only this subcommand has.
struct PredictOptions {
  std::string checkpoint{};           // empty: another command
  std::vector<std::string> images{};  // files, folders, or "-": paths from stdin
  std::int64_t top = 5;
  std::optional<std::string> csv{}, jsonl{};
  std::string weights = "automatic";
};

// Adds the subcommand. Returns the options of a run that it accepts.
const std::vector<std::string_view>& add_predict(CLI::App& app, Command& command);

// Returns the exit code: 0, 3 if no image could be read, or 128 + the number of a signal. dp::Error as of
// read_trained_model() and Predictor, dp::Error(data) if there are no images.
int predict(const Command& command, Signals& signals);

}  // namespace dp_train
