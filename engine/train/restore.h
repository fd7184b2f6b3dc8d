// The initial weights of a run: from a checkpoint or a file of weights.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "dp/checkpoint.h"
#include "dp/data_parallel.h"
#include "dp/error.h"
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

inline constexpr const char* kAnotherCheckpoint = "give another checkpoint with --resume";
// To be called in a catch block: rethrows `error`. Appends "; <remedy>" to an Error(data).
[[noreturn]] void rethrow_with_remedy(const Error& error, const std::string& remedy);

// Error(usage) with both values if the checkpoint is of another model. Unless `weights_only`, also if it differs in
// data set, seed, order of samples (shuffle, augment, drop-last), batch normalisation or logical shards.
void require_same_run(const Resumed& resumed, const TrainState& wanted, bool weights_only);

// Returns the tensors of `given` that fit `own`. Tensors that are missing, unknown, duplicate, or of another shape or
// type are listed in an Error(data) that ends with `remedy`. With `notice` they are listed there instead, and
// Error(data) is thrown only if no tensor fits.
NamedTensors fitting(const NamedTensors& own, NamedTensors given, const std::string& source, const std::string& remedy,
                     const Notice* notice);

void init_weights(DataParallel& net, const TrainerOptions& options, const Notice& notice);
void restore(DataParallel& net, const Resumed& resumed);

// Error(nonfinite) with the name of the first tensor that holds NaN or Inf.
void require_finite(const NamedTensors& tensors);

}  // namespace dp
