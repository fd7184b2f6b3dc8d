// Weights and training state on disk. A checkpoint is a folder. Saving it is atomic.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dp/dataset.h"
#include "dp/loss_scale.h"
#include "dp/model.h"
#include "dp/optimizer.h"
#include "dp/tensor.h"

namespace dp {

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

// One safetensors file. Reading validates the header before it allocates tensors. Error(data) names the path and the
// fault. F32, F64, I64, I32 and U8 keep their type; 16-bit and 8-bit floats are widened to float32, other integers to
// int32 or int64, BOOL to uint8; other types are rejected. Writing is atomic (temporary file, fsync, rename). Error(io)
// if it fails, Error(usage) for names or tensors that the format cannot store.
NamedTensors read_safetensors(const std::string& path, std::map<std::string, std::string>* metadata = nullptr);
void write_safetensors(const std::string& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

// The weights in a file of torch.save, read without PyTorch: a state dict, or a training script's checkpoint that has
// one (docs/reference/formats.md). Types as in read_safetensors(). Nothing in the file is executed. `entry`: the entry
// of the checkpoint to read; empty: a moving average if there is one, else the weights. Error(data) names the path and
// what was met.
NamedTensors read_torch_file(const std::string& path, const std::string& entry = {});

// What identifies the data set of a run: its classes in the order of their labels, and its samples.
struct DataIdentity {
  std::vector<std::string> classes;  // names, as UTF-8; empty: the data set has none, or more than 4 MiB of them
  // Images of each class; empty with more than 100,000 classes.
  std::vector<std::int64_t> train_counts{}, test_counts{};
  // SHA-256 in hexadecimal of shape, number, classes and Dataset::sample_id() of the samples, in their order.
  std::string train_fingerprint{}, test_fingerprint{};
  friend bool operator==(const DataIdentity&, const DataIdentity&) = default;
};

// Progress of a run. Independent of the devices.
struct TrainState {
  std::string model;
  std::string dataset;
  std::int64_t step = 0;            // completed optimizer steps
  std::int64_t epoch = 0;           // epoch of the next step
  std::int64_t batch_in_epoch = 0;  // batch number of the next step in its epoch
  std::uint64_t seed = 0;
  std::int64_t global_batch = 0;
  double best_top1 = -1;                  // percent; -1 before the first evaluation, and with targets
  std::optional<double> best_loss{};      // with targets, after the first evaluation
  std::string config;                     // options of the run: a JSON object, or empty
  std::optional<LossScale> loss_scale{};  // with float16 only
  std::int64_t skipped = 0;               // of these steps, skipped because of NaN or Inf
  std::int64_t since_best = 0;            // evaluations since the one that reached best_top1 or best_loss
  Plateau plateau{};                      // with ScheduleKind::plateau
  std::optional<DataIdentity> data{};     // nullopt in checkpoints of earlier versions
};

struct Checkpoint {
  TrainState state;
  NamedTensors weights;  // PyTorch's names and layout
  OptimizerState optimizer;
  NamedTensors average;              // moving average of the weights; empty without ema_decay
  std::int64_t average_updates = 0;  // updates of the average; load_checkpoint(): `step` if the file has no number
  // What read_trained_model() requires besides the weights. nullopt in checkpoints of earlier versions.
  std::optional<Model> model{};
  std::optional<Preprocessing> preprocessing{};
};

// Writes model.safetensors (with the class names, the model and the preprocessing in its metadata),
// optimizer.safetensors, ema.safetensors (only with a moving average), state.json and manifest.json (sizes and crc32c
// of the files) into a temporary sibling of `folder`, syncs every file and folder, and then swaps it with the old one,
// if any. The parent folder must exist. Error(io) if it fails: the old checkpoint is unchanged. Error(usage) if
// `folder` exists and is neither a checkpoint nor empty.
void save_checkpoint(const std::string& folder, const Checkpoint& checkpoint);
// Error(data) if a file is missing, has another size or checksum, or cannot be parsed.
Checkpoint load_checkpoint(const std::string& folder);
// Returns the readable checkpoint with the highest step under `run_folder`/checkpoints (`last` wins a tie), or an empty
// string. Completes or removes the leftovers of a killed save. Do not call it while this process saves there.
// `passed_over` receives the unreadable checkpoints that may be newer than the returned one. Error(data) if the folder
// cannot be listed.
struct PassedOver {
  std::string folder, reason;
};
std::string find_checkpoint(const std::string& run_folder, std::vector<PassedOver>* passed_over = nullptr);

// Weights that were converted for a model. Pass `tensors` to DataParallel::set_weights().
struct FittedWeights {
  NamedTensors tensors;              // those that fit, under the model's names, in its types and shapes
  std::vector<std::string> changes;  // what was stripped from names, converted or filled in
  std::vector<std::string> faults;   // tensors of the model that are missing, and given ones that do not fit
};
// Accepts what PyTorch's load_state_dict(strict=True) accepts for `own`, the model's weights(): any float or integer
// type, counters of shape (n) with n > 0, missing num_batches_tracked. It also strips from names what wrappers of
// PyTorch insert (module, _orig_mod, ...), and any leading components that are common to all tensors of the model.
// Error(data) if two such prefixes lead to the model.
FittedWeights fit_weights(const NamedTensors& own, NamedTensors given);
// The same with the tensors of a safetensors file or a file of torch.save; `changes` names the types in the file, and
// the entry of a checkpoint that was read.
FittedWeights read_weights(const std::string& path, const NamedTensors& own);

// Weights of any kind, as they are stored.
struct StoredWeights {
  NamedTensors tensors;                           // without what wrappers of PyTorch insert into names
  std::map<std::string, std::string> metadata{};  // of a safetensors file
  std::vector<std::string> changes{};             // converted types, stripped names, what was passed over
};
// Reads a file of torch.save (`entry` as in read_torch_file()), a safetensors file, a checkpoint, or a run: its
// checkpoint `best`, or else `last`. Of a checkpoint the moving average is read, if there is one. Error(data) names the
// path and the fault.
StoredWeights read_stored_weights(const std::string& path, const std::string& entry = {});
// SHA-256 in hexadecimal over name, type, shape and bytes of each tensor, in order of name.
std::string weights_sha256(const NamedTensors& tensors);

}  // namespace dp
