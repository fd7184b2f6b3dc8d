// A small training run: a convolution, a batch normalisation and a dropout on 300 digits. Batches of 48 (the last one
// 12), 7 steps per epoch.
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

inline Model tiny_model() {
  ModelBuilder m("tiny", Shape{1, 28, 28});
  const auto x = m.conv2d("conv", m.input(), {.out_channels = 6, .kernel = 7, .stride = 3, .bias = false});
  const auto dropped = m.dropout("dropout", m.relu(m.batch_norm2d("bn", x)), 0.25f);
  return m.build(m.linear("fc", m.flatten(dropped), {.out_features = 10}));
}

inline TrainerOptions tiny_options(const std::string& folder = "") {
  TrainerOptions options;
  options.epochs = 3;
  options.batch_size = 48;
  options.optimizer = Sgd{.lr = 0.05f, .momentum = 0.9f};
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

// Requests a stop after `step` steps.
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
