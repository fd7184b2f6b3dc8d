// A whole training run: epochs, evaluation, checkpoints, metrics.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dp/checkpoint.h"
#include "dp/data_parallel.h"
#include "dp/dataset.h"
#include "dp/loader.h"
#include "dp/optimizer.h"

namespace dp {

// Where the data set's images lie: on the host, whose loader makes float32 batches of them, or as bytes on every replica's device, which
// makes its own. Both give the same bits.
enum class ImagesOn { automatic, host, device };

struct TrainerOptions {
  std::int64_t epochs = 3;
  std::int64_t max_steps = 0;     // 0: no limit. Counted over the whole run, resumed parts included
  std::int64_t batch_size = 128;  // global, per optimizer step
  Sgd sgd{.lr = 0.05f, .momentum = 0.9f};
  Schedule schedule{.kind = ScheduleKind::cosine};  // total_epochs is set from epochs and max_steps when it is cosine
  DataParallelOptions parallel{};
  bool shuffle = true;
  bool augment = true;
  bool drop_last = false;
  int workers = 0;  // loader threads; 0: cores left over, 1 to 4
  // automatic: the device where that is a GPU with room and the data set does not vary its images itself.
  ImagesOn images_on = ImagesOn::automatic;
  std::string dataset_name{};          // for the record
  std::string output_dir{};            // the run's folder; empty: nothing is written
  std::int64_t save_every_epochs = 1;  // 0: only at the end. `best` is written whenever it changes
  std::int64_t save_every_steps = 0;   // 0: off
  int checkpoint_hist = 0;     // so many of the latest checkpoints are kept as step-N, besides `last` and `best`
  std::string resume{};        // a checkpoint folder, a run folder, or "auto" (output_dir's newest, if any)
  std::string init{};          // a safetensors file: weights only. Not read when "auto" finds a checkpoint
  bool init_partial = false;   // take the tensors of `init` that fit, report the others; otherwise all must fit
  std::string summary_file{};  // a second copy of summary.json; empty: none
  // The timeline of the steps that parallel.trace_steps says is written there when training ends; empty: nowhere.
  std::string trace_file{};
  bool profile = false;  // the summary tells what each layer took in those steps
  bool dry_run = false;  // one training and one evaluation batch, no files
  int print_freq = 10;   // steps between on_step calls; 0: only after the last of an epoch
  // Non-zero: finish the step or the evaluation's batch, save what was trained, write the summary, return with interrupted set.
  // Waits for data end at once; planning, tuning and reading of files run to their end.
  const std::atomic<int>* stop = nullptr;
  // Set by run() from its first training step until it returns. While it is false a process that ends loses no training: a program
  // that wants to leave during planning, tuning, loading or an evaluation may call _exit. Null: not reported.
  std::atomic<bool>* unsaved = nullptr;
};

struct StepReport {
  std::int64_t epoch = 0, batch = 0, batches = 0, step = 0;
  double lr = 0;
  double images_per_second = 0;  // since the last report, the run's first second (or 10 steps) left out
  double eta_seconds = 0;        // to the end of the epoch
  Stats recent;                  // since the last report
  Stats epoch_so_far;
  std::vector<PhaseTimes> phases;  // per replica, since the last report
};

struct EvalReport {
  std::int64_t epoch = 0, step = 0;
  Stats stats;
  double seconds = 0;
  bool average = false;  // of the weights' moving average, not of the weights
  bool best = false;     // by top-1; with a moving average by that one's
};

// What summary.json holds.
struct RunSummary {
  std::string model, dataset, engine = "dp";
  std::vector<std::string> devices;
  Choice communicator, graphs;
  std::int64_t global_batch = 0, epochs = 0, steps = 0, skipped_steps = 0;
  double seconds_train = 0, images_per_second = 0;
  double train_loss = 0, test_loss = 0, top1 = 0, top5 = 0;  // NaN: there was none
  std::string weights_sha256, checkpoint;
  bool interrupted = false;  // a stop was asked for before the run was complete
  // Not written to the file:
  std::string output_dir;
  std::vector<PhaseTimes> phases;  // per replica, over the training steps of this run
  std::vector<LayerTime> layers;   // with TrainerOptions::profile
};
std::string to_json(const RunSummary& summary);  // one object, one line

// Called on the thread that runs the trainer; every member may be left empty.
struct TrainerCallbacks {
  std::function<void(const DataParallel&, const TrainerOptions&)> on_start{};
  std::function<void(const StepReport&)> on_step{};
  std::function<void(const EvalReport&)> on_eval{};
  std::function<void(const std::string& folder)> on_checkpoint{};
  std::function<void(const std::string& text)> on_message{};  // a notice for a person
};

class Trainer {
 public:
  // Error(usage) for options that can never work, or a model that does not fit the data.
  Trainer(const Model& model, const DatasetPair& data, const TrainerOptions& options);
  ~Trainer();

  // Trains; may be called once. Error(usage) when another run holds the folder, or when what is resumed has another
  // model, dataset, seed, global batch, order of samples, batch normalisation or logical shards; Error(nonfinite), also where every step of
  // an epoch or of the run was skipped, names the last good checkpoint; a failed save is a notice, and Error(io) when it was the last.
  RunSummary run(const TrainerCallbacks& callbacks = {});
  // The test set once, with the weights of `init` or `resume`. Writes no run folder.
  RunSummary evaluate(const TrainerCallbacks& callbacks = {});
  DataParallel& net();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Throws Error(device) if training with these options needs more host memory than the machine or a control group of this process has left.
// The message has both figures and the batch or the number of replicas that fits. Counts CPU replicas (estimate_memory()) and the batches
// that the loader prepares; `training` false: for an evaluation alone. Allocates nothing. A Trainer calls it first; call it yourself to get
// the result before replicas are made. With several ranks it returns at once: the ranks check together when they make their replicas.
void require_memory(const Model& model, const DatasetPair& data, const TrainerOptions& options, bool training = true);

// A progress reporter for a terminal (one line, rewritten) or a log (plain lines).
struct ConsoleOptions {
  bool quiet = false;    // only the summary
  bool progress = true;  // the rewritten line, when stdout is a terminal
};
TrainerCallbacks console_callbacks(const ConsoleOptions& options = {});
void print_summary(const RunSummary& summary);
// One line for a terminal or a log: control characters and bytes that are not UTF-8 written as \xNN.
std::string printable(std::string_view text);

}  // namespace dp
