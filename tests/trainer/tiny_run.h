// A training run small enough for a test: a perceptron on 300 digits, 48 a batch (the last one 12), 7 steps an epoch.
#pragma once

#include <atomic>
#include <functional>

#include "dp/dp.h"
#include "support/temporary_folder.h"

namespace dp::test {

constexpr std::int64_t kTinyBatches = 7;

inline const DatasetPair& tiny_digits() {
  static const DatasetPair data = datasets::digits(300, 130);
  return data;
}

inline Model tiny_model() { return models::mlp({.hidden = {24}}); }

inline TrainerOptions tiny_options(const std::string& folder = "") {
  TrainerOptions options;
  options.epochs = 3;
  options.batch_size = 48;
  options.sgd = {.lr = 0.05f, .momentum = 0.9f};
  options.parallel.devices = cpus(2);
  options.parallel.threads_per_replica = 1;
  options.parallel.deterministic = true;
  options.dataset_name = "digits";
  options.output_dir = folder;
  options.workers = 1;
  options.print_freq = 1;
  return options;
}

inline RunSummary tiny_run(const TrainerOptions& options, const TrainerCallbacks& callbacks = {}) {
  Trainer trainer(tiny_model(), tiny_digits(), options);
  return trainer.run(callbacks);
}

// Asks to stop once that many steps are done.
inline RunSummary run_until(TrainerOptions options, std::int64_t step) {
  std::atomic<int> stop{0};
  options.stop = &stop;
  TrainerCallbacks callbacks;
  callbacks.on_step = [&](const StepReport& report) {
    if (report.step == step) stop = 2;
  };
  return tiny_run(options, callbacks);
}

}  // namespace dp::test
