// A whole training run: epochs, evaluation, checkpoints, metrics.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dp/checkpoint.h"
#include "dp/data_parallel.h"
#include "dp/dataset.h"
#include "dp/loader.h"
#include "dp/optimizer.h"

namespace dp {

struct TrainerOptions {
  std::int64_t epochs = 3;
  std::int64_t max_steps = 0;           // 0: no limit. Counted over the whole run, resumed parts included
  std::int64_t batch_size = 128;        // global, per optimizer step
  Sgd sgd{.lr = 0.02f, .momentum = 0.9f};
  Schedule schedule{.kind = ScheduleKind::cosine};   // total_epochs is set from epochs and max_steps when it is cosine
  DataParallelOptions parallel{};
  bool shuffle = true;
  bool augment = true;
  bool drop_last = false;
  int workers = 0;                      // loader threads; 0: cores left over, 1 to 4
  std::string dataset_name{};           // for the record
  std::string output_dir{};             // the run's folder; empty: nothing is written
  std::int64_t save_every_epochs = 1;   // 0: only at the end
  std::int64_t save_every_steps = 0;    // 0: off
  std::string resume{};                 // a checkpoint folder, a run folder, or "auto" (output_dir's newest, if any)
  std::string init{};                   // a safetensors file: weights only
  bool dry_run = false;                 // one training and one evaluation batch, no files
  int print_freq = 10;                  // steps between on_step calls
  const std::atomic<int>* stop = nullptr;   // non-zero: finish the step, save, return with interrupted set
};

struct StepReport {
  std::int64_t epoch = 0, batch = 0, batches = 0, step = 0;
  double lr = 0;
  double images_per_second = 0;         // since the last report, warm-up left out
  double eta_seconds = 0;               // to the end of the epoch
  Stats recent;                         // since the last report
  Stats epoch_so_far;
  std::vector<PhaseTimes> phases;       // per replica, since the last report
};

struct EvalReport {
  std::int64_t epoch = 0, step = 0;
  Stats stats;
  double seconds = 0;
  bool best = false;
};

// What summary.json holds.
struct RunSummary {
  std::string model, dataset, engine = "dp";
  std::vector<std::string> devices;
  std::int64_t global_batch = 0, epochs = 0, steps = 0;
  double seconds_train = 0, images_per_second = 0;
  double train_loss = 0, test_loss = 0, top1 = 0, top5 = 0;
  std::string weights_sha256, checkpoint;
  bool interrupted = false;             // a stop was asked for; not written
};
std::string to_json(const RunSummary& summary);   // one object, one line

// Called on the thread that runs the trainer; every member may be left empty.
struct TrainerCallbacks {
  std::function<void(const DataParallel&, const TrainerOptions&)> on_start{};
  std::function<void(const StepReport&)> on_step{};
  std::function<void(const EvalReport&)> on_eval{};
  std::function<void(const std::string& folder)> on_checkpoint{};
  std::function<void(const std::string& text)> on_message{};   // a notice for a person
};

class Trainer {
 public:
  Trainer(const Model& model, const DatasetPair& data, const TrainerOptions& options);
  ~Trainer();

  RunSummary run(const TrainerCallbacks& callbacks = {});
  RunSummary evaluate(const TrainerCallbacks& callbacks = {});   // the test set once, with --init or --resume weights
  DataParallel& net();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A progress reporter for a terminal (one line, rewritten) or a log (plain lines).
struct ConsoleOptions {
  bool quiet = false;       // only the summary
  bool progress = true;     // the rewritten line, when stdout is a terminal
};
TrainerCallbacks console_callbacks(const ConsoleOptions& options = {});
void print_summary(const RunSummary& summary);

}  // namespace dp
