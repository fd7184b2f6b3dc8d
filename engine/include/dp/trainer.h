// A whole training run: epochs, evaluation, checkpoints, metrics.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dp/checkpoint.h"
#include "dp/data_parallel.h"
#include "dp/dataset.h"
#include "dp/loader.h"
#include "dp/optimizer.h"
#include "dp/option_table.h"

namespace dp {

// Storage of the data set's images. host: the loader makes float32 batches. device: every replica's device stores the
// bytes and computes its own batches. Both give bitwise equal images.
enum class ImagesOn { automatic, host, device };

// An evaluation averages the outputs for these views of an image, before the softmax. flip: the image and its mirror
// image. flip_translate, as in airbench: these two, and both moved by a pixel to the upper left and to the lower right.
// The unmoved views have weights of 0.25, the four moved ones of 0.125.
enum class TestAugmentation { none, flip, flip_translate };

// A figure of a program's own, computed on the host after each evaluation. With ranks, every rank computes it
// from the outputs of all ranks.
struct OwnMetric {
  std::string name;  // in records and on the console
  // Gets the outputs of all evaluated samples, in no particular order, with their labels or targets.
  std::function<double(const EvaluatedLogits& evaluated)> function;
};

// The metrics that a program has added, for dp_train's options.
namespace metrics {
const std::vector<OwnMetric>& registry();
void add(OwnMetric metric);  // as models::add(); Error(usage) too if a record has another field of this name
}  // namespace metrics

struct TrainerOptions {
  std::int64_t epochs = 3;
  std::int64_t max_steps = 0;     // 0: no limit. Counted over the whole run, including resumed parts
  std::int64_t batch_size = 128;  // global, per optimizer step
  Optimizer optimizer = Sgd{.lr = 0.05f, .momentum = 0.9f};
  Schedule schedule{.kind = ScheduleKind::cosine};  // total_epochs is set from epochs and max_steps
  DataParallelOptions parallel{};
  bool measure_split = false;  // sets parallel.split_weights by measure_split(); not with deterministic
  bool shuffle = true;
  bool augment = true;
  Augmentation augmentation{};  // changes to the data set's; except for the interpolation they require `augment`
  bool drop_last = false;
  bool balanced_sampling = false;  // LoaderOptions::balanced
  int repeats = 1;                 // LoaderOptions::repeats: repeated augmentation
  // Training images are mixed, and classes weighted, as TargetOptions says. balance_classes sets class_weights to
  // N / (classes * images of the class), as scikit-learn's "balanced". A class without images has weight 0.
  double mixup_alpha = 0, cutmix_alpha = 0;
  std::vector<float> class_weights{};
  bool balance_classes = false;
  bool sample_weights = false;  // the weights of the training images are factors of their loss
  // Added to EvalReport::metrics, unless the outputs take more than 64 MiB or do not fit on the devices.
  std::vector<OwnMetric> metrics{};
  int workers = 0;  // loader threads; 0: as many as cores are left, 1 to 4
  // automatic: the device, if it is a GPU with enough free memory, the data set does not vary its images, and they are
  // augmented at most by a random crop and a random flip.
  ImagesOn images_on = ImagesOn::automatic;
  std::string dataset_name{};          // recorded in checkpoints and summaries
  std::string output_dir{};            // folder of the run; empty: nothing is written
  std::int64_t save_every_epochs = 1;  // 0: only at the end. `best` is saved whenever it improves
  std::int64_t save_every_steps = 0;   // 0: off
  // Seconds since the last save of `last`; 0: off. With several ranks it is compared where progress is printed.
  std::int64_t save_every_seconds = 0;
  // A run goes on while a checkpoint is written. One is written at a time. true: the run waits for the write.
  bool sync_checkpoints = false;
  int checkpoint_hist = 0;  // number of latest checkpoints to keep as step-N, besides `last` and `best`
  std::string resume{};     // a checkpoint folder, a run folder, or "auto" (the newest in output_dir, if any)
  std::string init{};       // weights, in safetensors or of torch.save; ignored if "auto" finds a checkpoint
  // Returns initial values of some parameters; the others are drawn. Called on rank 0 of a new run without `init`. May
  // be empty.
  std::function<NamedTensors()> first_weights{};
  bool init_partial = false;  // use the tensors of `init` that fit and report the rest; false: all must fit
  // `resume` and `init` require the class names of the data set to be those that the weights were trained with. true:
  // names may differ; class i uses output i of the classifier. To match them by name, see recorded_classes().
  bool classes_by_position = false;
  std::string summary_file{};  // path for a second copy of summary.json; empty: none
  // File for the timeline of the steps that parallel.trace_first and trace_steps select, written when training ends;
  // empty: none.
  std::string trace_file{};
  bool profile = false;         // adds the time of each layer in the traced steps to the summary
  bool dry_run = false;         // one training and one evaluation batch, no run folder
  int print_freq = 10;          // steps between on_step calls; 0: only after the last of an epoch
  std::int64_t eval_every = 1;  // epochs between evaluations; the last epoch is always evaluated. 0: no evaluation
  // Of every evaluation. Its loss and figures, also those of the program's own, are of the averaged outputs. The test
  // images are then never device-resident.
  TestAugmentation test_augmentation = TestAugmentation::none;
  std::int64_t patience =
      0;  // end the run after this many evaluations without a better one (EvalReport::best); 0: never
  // Further options to record in the run's config, by name: those of the program. A resumed run gets them back from
  // recorded_options().
  std::vector<std::pair<std::string, OptionValue>> record{};
  std::string program{};  // name, version and commit of the program, recorded in env.json
  // Options to print after "--resume <folder>" in messages, such as "--cpu 2".
  std::string resumed_with{};
  // For a resumed run: where an option that differs from the recorded one comes from, by name ("command line").
  std::map<std::string, std::string> given_by{};
  // Non-zero: finish the current step or evaluation batch, save, write the summary, and return with interrupted set.
  // Waits for data end at once; planning, tuning and file reads run to completion.
  const std::atomic<int>* stop = nullptr;
  // Non-zero: finish the current step (with several ranks: the epoch), evaluate, save, and return a complete summary,
  // as after the last step. May be null.
  const std::atomic<int>* finish = nullptr;
  // True from run()'s first training step until run() returns. While it is false, no training is lost if the process
  // ends: a program may call _exit during planning, tuning, loading or an evaluation. May be null.
  std::atomic<bool>* unsaved = nullptr;
};

// The options of a trainer's DataParallel. With mixed images or weights of classes, the targets contain the smoothing.
DataParallelOptions parallel_options(const TrainerOptions& options);

struct StepReport {
  std::int64_t epoch = 0, batch = 0, batches = 0, step = 0;
  double lr = 0;
  double images_per_second = 0;  // since the last report, without the run's first second (or 10 steps)
  double loading_share = 0;      // part of the time since the last report that was spent waiting for data, 0 to 1
  double eta_seconds = 0;        // to the end of the epoch, or to the last step of the run
  double seconds_train = 0;      // of training so far, including the earlier parts of a resumed run
  Stats recent;                  // since the last report
  Stats epoch_so_far;
  std::vector<PhaseTimes> phases;  // per replica, since the last report
};

struct EvalReport {
  std::int64_t epoch = 0, step = 0;
  Stats stats;
  double seconds = 0;
  bool average = false;  // evaluated the moving average instead of the weights
  bool alone = false;    // by Trainer::evaluate(), not within a training run
  bool best = false;     // highest top-1 so far; without accuracies: lowest loss; with a moving average: its figures
  std::vector<Metric> metrics{};  // of data sets with targets: mae, rmse, r2, or f1, map; then the program's own
};

// The end of an epoch, or of a part of one at the end of a run.
struct EpochReport {
  std::int64_t epoch = 0, step = 0;
  Stats train;                        // over the part that was trained
  std::optional<EvalReport> test;     // of the weights; none if the epoch was not evaluated
  std::optional<EvalReport> average;  // of their moving average
  double seconds = 0;                 // of training
  double images_per_second = 0;
  double loading_share = 0;  // part of the training time that was spent waiting for data, 0 to 1
  double lr = 0;             // of the last step
};

// Work between training steps that takes a while.
struct WorkReport {
  std::string what;  // "Test", "Reading images", "Planning layers"
  // Batches or images. If the total is unknown, it is 0 at the beginning, and the last report is 1 of 1.
  std::int64_t done = 0, total = 0;
};

// Contents of summary.json.
struct RunSummary {
  std::string model, dataset, engine = "dp";
  std::vector<std::string> devices;
  Choice communicator, graphs;
  std::string pipeline{};   // DataParallel::describe_pipeline()
  int pipeline_stages = 1;  // of each replica
  std::int64_t global_batch = 0, epochs = 0, steps = 0, skipped_steps = 0;
  double seconds_train = 0;                                  // including the earlier parts of a resumed run
  double images_per_second = 0;                              // since the run was started or resumed
  double train_loss = 0, test_loss = 0, top1 = 0, top5 = 0;  // NaN: not available
  std::vector<Metric> metrics{};                             // of the last evaluation
  std::string weights_sha256, checkpoint;
  bool interrupted = false;       // by a stop or an error, before the run was complete
  std::string end = "complete";   // or "interrupted", "early: " and the reason, "error: " and the message
  std::vector<LayerTime> layers;  // with TrainerOptions::profile
  // Faults of replaced images, sorted; none without replace_bad_images(). The file has the number and the first 100.
  std::optional<std::vector<std::string>> bad_images;
  // Not written to the file:
  std::int64_t classes = 0;
  std::string output_dir;
  std::vector<PhaseTimes> phases;  // per replica, over the training steps of this run
};
std::string to_json(const RunSummary& summary);  // one object, one line

// Called on the thread that runs the trainer; members may be empty.
struct TrainerCallbacks {
  std::function<void(const DataParallel&, const TrainerOptions&)> on_start{};
  std::function<void(const StepReport&)> on_step{};
  std::function<void(const EvalReport&)> on_eval{};
  std::function<void(const EpochReport&)> on_epoch{};
  std::function<void(const WorkReport&)> on_work{};  // around planning; before and after each batch of an evaluation
  std::function<void(const std::string& folder)> on_checkpoint{};  // after it was written, between two steps
  std::function<void(const std::string& text)> on_message{};       // a notice for the user
};

class Trainer {
 public:
  // Error(usage) for invalid options, or a model that does not fit the data.
  Trainer(const Model& model, const DatasetPair& data, const TrainerOptions& options);
  ~Trainer();

  // Trains; may be called once.
  // Error(usage) if another run uses the folder, or if the resumed checkpoint has another model, dataset, seed, sample
  // order, batch normalisation or number of logical shards, or ends inside a batch of this run.
  // Error(data) if the classes of the data set are not those of `resume` or `init` (see classes_by_position), or if the
  // ranks have different data.
  // Error(nonfinite) names the last good checkpoint; it is also thrown if every step of an epoch or of the run was
  // skipped.
  // A failed save is reported as a notice; Error(io) if it was the last save.
  // An error that leaves the weights intact (a sample that cannot be read, an exception of a callback) ends the run as
  // a stop does: the finished steps are saved, the summary is written, and the error is thrown.
  RunSummary run(const TrainerCallbacks& callbacks = {});
  // Evaluates the test set once, with the weights of `init` or `resume`. Writes no run folder.
  RunSummary evaluate(const TrainerCallbacks& callbacks = {});
  DataParallel& net();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Host memory of the process of a run at its peak, in bytes, by purpose.
struct HostMemory {
  std::size_t process = 0;   // resident now: program, libraries, the data set if it is in memory, plans, generated code
  std::size_t code = 0;      // pages of the program and its libraries that only a running step needs
  std::size_t replicas = 0;  // of CPU replicas: estimate_memory(), rounded up as it is allocated
  std::size_t loaders = 0;   // batches that are prepared ahead, a decoded image for each thread, the order of samples
  std::size_t copies = 0;    // of weights and optimizer state for a checkpoint
  std::size_t records = 0;   // logits of an evaluation, for the report
  std::size_t threads = 0;   // stacks and allocator arenas
  std::size_t total() const { return process + code + replicas + loaders + copies + records + threads; }
};
// Call it before a Trainer with these options is made. It makes the plans, whose generated code is then part of
// `process`. Not known beforehand, and not included: memory that the allocator keeps after it was freed, the buffers of
// an image decoder, and the host memory of a GPU driver.
HostMemory estimate_host_memory(const Model& model, const DatasetPair& data, const TrainerOptions& options,
                                bool training = true);

// Error(device) if training with these options needs more host memory than is available to this process, limited by the
// machine and its control groups. The message has both figures and the batch or the number of replicas that fits.
// Compares estimate_host_memory() with it; `training` false: for an evaluation only. Allocates none of this memory. A
// Trainer calls it first; call it directly to check before replicas are made. With several ranks it returns at once:
// the ranks check together when they make their replicas.
void require_memory(const Model& model, const DatasetPair& data, const TrainerOptions& options, bool training = true);

// Options of the progress reporter for a terminal (one line, rewritten) or a log (plain lines).
struct ConsoleOptions {
  bool quiet = false;    // only the summary
  bool progress = true;  // the rewritten line, when stdout is a terminal
};
TrainerCallbacks console_callbacks(const ConsoleOptions& options = {});
// `devices`: options of the program that choose the devices, such as "--cpu 2". They are part of the command that
// continues an interrupted run.
void print_summary(const RunSummary& summary, const std::string& devices = "");
// Two lines: the number of images; the number of classes, and of images in each. A third one if other files were found.
std::string describe_data(const DatasetPair& data);
// Returns one printable line: controls, invisible characters and invalid UTF-8 are \xNN, secrets in addresses ***.
std::string printable(std::string_view text);

}  // namespace dp
