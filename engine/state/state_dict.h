// Weights, running statistics, gradients and optimizer state as host tensors in PyTorch's names, layout and order, of
// all replicas together. All calls are made on the caller's thread, between steps.
#pragma once

#include <climits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/step/team.h"

namespace dp::engine {

// Where elements of an arena are stored.
struct ArenaPart {
  kernels::Range range;  // of the arena's elements
  const std::byte* data;
  bool near;  // on the device of the first replica
};
// Copies a parameter to row-major host memory. `parts`: of the arena; elements that are in none are zero. Uses the
// stream of `device`, which is that of the first replica, and waits for it.
void export_parameter(OpenDevice& device, const ParameterTable& table, int entry, const std::vector<ArenaPart>& parts,
                      Tensor& to);

// Calls parameter(index) and buffer(spec) for all of a model, in PyTorch's order: each layer's parameters, then its
// buffers.
template <typename P, typename B>
void for_each_weight(const Model& model, P&& parameter, B&& buffer) {
  std::size_t next = 0;
  const auto buffers_before = [&](int layer) {
    while (next < model.buffers().size() && model.buffers()[next].layer < layer) buffer(model.buffers()[next++]);
  };
  for (std::size_t i = 0; i < model.parameters().size(); ++i) {
    buffers_before(model.parameters()[i].layer);
    parameter(static_cast<int>(i));
  }
  buffers_before(INT_MAX);
}

class StateDict {
 public:
  using Tensors = std::vector<std::pair<std::string, Tensor>>;

  explicit StateDict(Team& team) : team_(team), setup_(team.setup) {}

  Tensors weights();    // each layer's parameters, then its buffers (see BufferSpec): running statistics and a counter
  Tensors gradients();  // of the last backward, without the loss scale
  Tensors optimizer_slot(std::size_t slot);
  // Of the values, or of a slot of the optimizer's state, of a stage on this process's replicas.
  std::vector<ArenaPart> value_parts(const Worker& first) const;
  std::vector<ArenaPart> slot_parts(int stage, std::size_t slot) const { return parts_of(stage, Arena::state, slot); }
  // A buffer on the stage of `first`. `statistics`: the arena of running statistics, or their average.
  Tensor buffer(Worker& first, const BufferSpec& buffer, const std::byte* statistics) const;
  static bool is_counter(const BufferSpec& buffer) { return buffer.kind == BufferKind::num_batches_tracked; }
  // Where it begins in `statistics`; not for a counter, which is on the host.
  const std::byte* place_of(int stage, const BufferSpec& buffer, const std::byte* statistics) const;
  // Tensors that are not named keep their values; other types are converted. Error(data) for an unknown name or another
  // shape; nothing is then changed.
  void set_weights(const Tensors& tensors);
  void check_weights(const Tensors& tensors) const;                   // Error(data) as set_weights()
  void check_slot(const Tensors& tensors) const;                      // Error(data) as set_optimizer_slot()
  void set_optimizer_slot(std::size_t slot, const Tensors& tensors);  // the state must be allocated
  // Sends the first replica's weights to the others, after they were changed in place.
  void broadcast_weights();

  // Running statistics: the master updates them. The other replicas receive them when they need them.
  // Call count_trained_batches() after so many training forward passes.
  void count_trained_batches(std::int64_t batches) { batches_tracked_ += batches, statistics_outdated_ = true; }
  void running_statistics_changed() { statistics_outdated_ = true; }
  void broadcast_running_statistics();
  std::int64_t batches_tracked() const { return batches_tracked_; }
  void set_batches_tracked(std::int64_t batches) { batches_tracked_ = batches; }

  // Gives every replica all float32 weights. In the last step each replica has updated only its own part of them.
  void all_gather_values();

 private:
  enum class Arena { gradient, state };
  struct FoundParameter {
    int stage = 0, entry = 0;
    Tensor tensor{};  // in the type of the weights
  };
  struct FoundBuffer {
    int stage = 0;
    const BufferSpec* buffer = nullptr;
    Tensor tensor{};  // int64 for a counter
  };
  struct FoundWeights {
    std::vector<FoundParameter> parameters;
    std::vector<FoundBuffer> buffers;
  };

  FoundParameter find(const std::string& name, const Tensor& tensor) const;
  std::vector<FoundParameter> find(const Tensors& tensors) const;
  FoundWeights find_weights(const Tensors& tensors) const;
  std::optional<FoundBuffer> find_buffer(const std::string& name, const Tensor& tensor) const;

  // Calls of_stage(worker) on every stage of the first replica. Returns the tensors of all stages, in forward order.
  template <typename F>
  Tensors tensors_of_stages(F&& of_stage);
  std::vector<ArenaPart> parts_of(int stage, Arena arena, std::size_t slot) const;
  // Copies the parts of an arena from the replicas that own them into one buffer on the device of `first`.
  std::unique_ptr<kernels::Buffer> assemble(Worker& first, Arena arena, std::size_t slot);
  Tensors export_arena(Arena arena, std::size_t slot);
  // These work on the stage of `first`.
  Tensors weights_of(Worker& first);
  void import_buffer(Worker& first, const BufferSpec& buffer, const Tensor& tensor);

  Team& team_;
  const ModelSetup& setup_;
  std::int64_t batches_tracked_ = 0;  // training forwards included in the running statistics
  bool statistics_outdated_ = false;  // running statistics, on all replicas but the master
};

}  // namespace dp::engine
