// The start of a run: its options are checked, its weights come from a checkpoint or a file of weights, and every rank
// gets the same initial state.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "dp/checkpoint.h"
#include "dp/data_parallel.h"
#include "dp/error.h"
#include "dp/model.h"
#include "dp/process_group.h"
#include "dp/trainer.h"

namespace dp {

using Notice = std::function<void(const std::string&)>;

struct Resumed {
  std::string folder;
  Checkpoint checkpoint;
};

// Loads the checkpoint that options.resume names. Returns nothing if options.resume is empty, or if it is "auto" and
// `output_dir` has no checkpoint yet. `locked`: the caller holds the lock of output_dir. Error(data) if the checkpoint
// cannot be read; Error(usage) for "auto" without output_dir. In a run folder, a newer checkpoint that cannot be read
// is skipped with a notice.
std::optional<Resumed> find_resumed(const TrainerOptions& options, bool locked, const Notice& notice);

// The folder of that checkpoint, or empty.
std::string find_resumed_folder(const TrainerOptions& options, bool locked, const Notice& notice);

inline constexpr const char* kOtherWeights = "give weights in safetensors or of torch.save with --init";
inline constexpr const char* kAnotherCheckpoint = "give another checkpoint with --resume";
// To be called in a catch block: rethrows `error`. Appends "; <remedy>" to an Error(data).
[[noreturn]] void rethrow_with_remedy(const Error& error, const std::string& remedy);

// Error(usage) with both values if the checkpoint is of another model. Unless `weights_only`, also if it differs in
// data set, seed, order of samples (shuffle, augment, drop-last), augmentation, batch normalisation or logical shards.
void require_same_run(const Resumed& resumed, const TrainState& wanted, bool weights_only);

// The tensors of the file options.init for a model with the weights `own`. Error(data) unless all fit or, with
// options.init_partial, if no weight of a layer fits.
FittedWeights initial_weights(const NamedTensors& own, const TrainerOptions& options);

// Compares the data set with that of the checkpoint: Error(data) for other class names, notices for other images.
void require_same_data(const Resumed& resumed, const TrainerOptions& options, const DataIdentity& data,
                       bool inside_epoch, const Notice& notice);
// Loads initial_weights(), and reports in one notice what was stripped, converted or left out. Error(data) if the file
// records other class names than `classes`; with init_partial the classifier is left out.
void init_weights(DataParallel& net, const TrainerOptions& options, const std::vector<std::string>& classes,
                  const Notice& notice);
void restore(DataParallel& net, const Resumed& resumed);

// Error(nonfinite) with the name of the first tensor that holds NaN or Inf.
void require_finite(const NamedTensors& tensors);

// Error(usage) for options that cannot work: a number out of range, or a model that does not fit the data.
void check_options(const Model& model, const DatasetPair& data, const TrainerOptions& options);

// Where a run's images are stored.

// The option whose batches only the host can make, with this augmentation; empty if there is none.
std::string option_of_host(const Augmentation& augmentation, const TrainerOptions& options);

// Resolves options.images_on to host or device. Call it after the DataParallel is constructed: `automatic` checks the
// free memory of the devices. Error(usage) if device is requested and the data set varies its images itself, or is
// augmented by steps that only the host does.
ImagesOn chosen_place(const DatasetPair& data, const TrainerOptions& options);

// The initial state of a run, equal on every rank. Rank 0 reads files and broadcasts what it has read.

struct Start {
  std::int64_t step = 0, skipped = 0, epoch = 0, batch_in_epoch = 0, since_best = 0;
  double best_top1 = -1;
  std::optional<double> best_loss{};
  Plateau plateau{};
  bool resumed = false, initialised = false;
  bool state = false, average = false;  // whether the checkpoint holds an optimizer's state and a moving average
  std::int64_t updates = 0;             // of the optimizer
  bool writes = false;                  // whether rank 0 writes a run folder
  bool scaled = false;                  // whether the checkpoint holds a loss scale
  LossScale loss_scale{};
};

// Error(usage) with the first option that differs from rank 0's.
void require_same_options(ProcessGroup& group, nlohmann::ordered_json config);

// Loads the weights of `resumed`, or of options.init, into the network. `resumed` is used on rank 0 only. `classes`:
// the names of the data set's classes. Error(data) if options.init is a file of a checkpoint with others.
Start start_from(DataParallel& net, const TrainerOptions& options, const std::optional<Resumed>& resumed,
                 const std::vector<std::string>& classes, bool writes, const Notice& notice);

}  // namespace dp
