// Weights and training state on disk. A checkpoint is a folder that appears whole or not at all.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dp/loss_scale.h"
#include "dp/tensor.h"

namespace dp {

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

// One safetensors file. Reading validates everything before it allocates: Error(data) names path and fault. F32, F64, I64, I32 and U8
// are kept, F16 and BF16 become float32, other types are refused. Writing is atomic (temporary file, fsync, rename): Error(io);
// Error(usage) for names or tensors that no such file may hold.
NamedTensors read_safetensors(const std::string& path, std::map<std::string, std::string>* metadata = nullptr);
void write_safetensors(const std::string& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

// Where a run stands. Knows nothing of devices.
struct TrainState {
  std::string model;
  std::string dataset;
  std::int64_t step = 0;            // optimizer steps done
  std::int64_t epoch = 0;           // the epoch that the next step belongs to
  std::int64_t batch_in_epoch = 0;  // its batch number in that epoch
  std::uint64_t seed = 0;
  std::int64_t global_batch = 0;
  double best_top1 = -1;                  // percent; -1 before the first evaluation
  std::string config;                     // the run's options, a JSON object, or empty
  std::optional<LossScale> loss_scale{};  // of a run with float16
  std::int64_t skipped = 0;               // of the steps, those skipped because of NaN or Inf
};

struct Checkpoint {
  TrainState state;
  NamedTensors weights;  // PyTorch's names and layout
  NamedTensors momenta;  // of the trained ones; empty without momentum
  NamedTensors average;  // the weights' moving average; empty when none is kept
};

// Writes `folder` (its parent must exist) as model.safetensors, optimizer.safetensors, ema.safetensors, state.json and manifest.json with sizes and
// crc32c: into a temporary sibling, every file and folder synced, then exchanged with what stood there. Error(io); the old one stays.
// Error(usage) when `folder` exists and is neither a checkpoint nor empty.
void save_checkpoint(const std::string& folder, const Checkpoint& checkpoint);
// Error(data) when a file is missing, of another size or checksum, or does not parse.
Checkpoint load_checkpoint(const std::string& folder);
// The newest readable checkpoint under `run_folder`/checkpoints by its step (`last` wins a tie); empty when there is none. Finishes or
// removes what a killed save left behind; not to be called while this process saves there. `passed_over`: those that can
// not be read and may be newer than the one found.
struct PassedOver {
  std::string folder, reason;
};
std::string find_checkpoint(const std::string& run_folder, std::vector<PassedOver>* passed_over = nullptr);

// "module." stripped from every name.
NamedTensors strip_module_prefix(NamedTensors tensors);
// SHA-256 in hexadecimal over the tensors in order of name: name, type, shape, bytes.
std::string weights_sha256(const NamedTensors& tensors);

}  // namespace dp
