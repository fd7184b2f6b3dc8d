// The arenas of one replica: weights, gradients, running statistics and moments, at the same offsets on every replica;
// also the inputs and results of a step. They exist as long as the DataParallel. And a copy of them for checkpoints.
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "engine/layers/nodes.h"
#include "engine/layers/parameters.h"
#include "engine/layers/plan_parts.h"
#include "engine/step/open_device.h"
#include "kernels/step_state.h"

namespace dp::engine {

struct ReplicaOptions {
  int rank = 0;
  int stage = 0;          // of the pipeline
  int local_shards = 1;   // shards of a micro-batch on this replica
  int shards = 1;         // on all replicas
  int micro_batches = 1;  // in progress at the same time
  int lanes = 1;          // items whose activations are held at the same time; item i uses lane i % lanes
  int saved_inputs = 0;  // items whose inputs are saved apart from the activations; item i uses number i % saved_inputs
  bool scales_loss = false;
  std::size_t target_bytes = sizeof(std::int32_t);  // of one sample, at most
};

class Arenas {
 public:
  // Bytes of each buffer; 0: none. The estimate of memory reads them too.
  struct Sizes {
    std::size_t values = 0, low_values = 0, gradients = 0;  // low: in the activation type, with mixed precision
    std::size_t running_statistics = 0, moments = 0;        // of batch normalisation
    std::size_t inputs = 0, results = 0, scaler = 0;

    MemoryUse use() const;
  };
  static Sizes sizes(const ParameterTable& table, const NormTable& norms, const kernels::Context& context,
                     const ReplicaOptions& options);

  // The arguments must outlive this object.
  Arenas(OpenDevice& device, const ParameterTable& table, const NormTable& norms, const ReplicaOptions& options);

  const ParameterTable& table() const { return table_; }

  std::byte* values() const { return begin_of(values_); }
  std::byte* gradients() const { return begin_of(gradients_); }  // of shard 0; shards 1, 2, ... follow
  std::byte* value(std::int64_t element) const { return values() + bytes_of(element); }
  std::byte* gradient(std::int64_t element) const { return gradients() + bytes_of(element); }
  std::byte* running_statistics() const { return begin_of(running_statistics_); }
  std::byte* moments() const { return begin_of(moments_); }
  // Mixed precision: layers read copies of the values in the activation type, in an arena with the same element order.
  bool mixed() const { return low_values_ != nullptr; }
  std::byte* low_value(std::int64_t element) const;
  kernels::StepInputs* step_inputs() const { return static_cast<kernels::StepInputs*>(inputs_->data()); }
  // Of shard 0; those of shards 1, 2, ... follow.
  kernels::StepResults* step_results() const { return static_cast<kernels::StepResults*>(results_->data()); }
  kernels::LossScaler* scaler() const {  // null without loss scaling
    return scaler_ ? static_cast<kernels::LossScaler*>(scaler_->data()) : nullptr;
  }

  // While the flag is set, another thread copies the values and the optimizer's state, and updates wait.
  void keep_while(const std::atomic<bool>& copied) { copied_ = &copied; }
  void wait_for_copy() const {
    if (copied_ != nullptr) copied_->wait(true);
  }

  // These enqueue and return.
  void upload_step_inputs(const kernels::StepInputs& inputs);
  void set_scaler(const kernels::LossScaler& scaler);
  void zero_gradients(int shard);
  void zero_statistic(const AllGather& statistic, int shard);  // the entry of a local shard that has no rows

  // These wait for the compute stream.
  kernels::LossScaler read_scaler();
  std::vector<kernels::StepResults> take_results();  // the accumulated results of each shard, which it clears
  // Copies one tensor between row-major host memory and an arena of this device.
  void import_entry(int entry, const Tensor& from, std::byte* arena);
  void export_entry(int entry, const std::byte* arena, Tensor& to);

 private:
  static std::byte* begin_of(const std::unique_ptr<kernels::Buffer>& buffer) {
    return buffer ? static_cast<std::byte*>(buffer->data()) : nullptr;
  }
  std::size_t bytes_of(std::int64_t elements) const {
    return static_cast<std::size_t>(elements) * size_of(table_.type());
  }
  void clear_results();

  OpenDevice& device_;
  const std::atomic<bool>* copied_ = nullptr;
  const ParameterTable& table_;
  const ReplicaOptions& options_;
  std::unique_ptr<kernels::Buffer> values_, gradients_, inputs_, results_, low_values_, scaler_, running_statistics_,
      moments_;
  std::unique_ptr<kernels::Op> clear_gradients_;
  std::vector<std::pair<std::size_t, std::unique_ptr<kernels::Op>>> clear_statistic_;  // by AllGather::shard_bytes
};

// Copies a parameter whose elements begin at `values`, on this device, to row-major host memory. Waits for the stream.
void export_entry(OpenDevice& device, const ParameterEntry& entry, DType type, const std::byte* values, Tensor& to);

// Memory of a GPU for a copy of arenas, which another thread reads while the next steps run.
class DeviceCopy {
 public:
  // What it takes on the device. `arenas`: copied arenas of parameters. `statistics`: bytes of running statistics.
  static std::size_t bytes(const ParameterTable& table, std::size_t arenas, std::size_t statistics);

  // Allocates all that read() needs. Call it while no device works: during a collective an allocation on a GPU could
  // wait for ever. The arguments must outlive this object, and `abort` ends its waits. Null if the device has less than
  // twice `bytes` free, because libraries and graphs may allocate later.
  static std::unique_ptr<DeviceCopy> make(OpenDevice& device, const ParameterTable& table, std::size_t bytes,
                                          kernels::AbortFlag* abort);
  std::size_t bytes() const { return bytes_; }

  // The next bytes of the memory, for a copy. restart() begins again.
  std::byte* take(std::size_t bytes);
  void restart() { taken_ = 0; }

  // These are called on any thread, one at a time. `arena`: a copy of a whole arena.
  void read(int entry, const std::byte* arena, Tensor& to);
  void read(const std::byte* from, Tensor& to);

 private:
  DeviceCopy(OpenDevice& device, const ParameterTable& table, std::size_t bytes, kernels::AbortFlag* abort);

  const ParameterTable& table_;
  const std::size_t bytes_;
  OpenDevice reader_;  // has a stream of its own
  std::unique_ptr<kernels::Buffer> memory_, staged_, workspace_;
  std::vector<std::unique_ptr<kernels::Op>> reorders_;  // to PyTorch's layout; one per parameter
  std::size_t taken_ = 0;
};

}  // namespace dp::engine
