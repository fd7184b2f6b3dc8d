// The parts of a DataParallel.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dp/data_parallel.h"
#include "engine/state/replicated_optimizer.h"
#include "engine/state/state_dict.h"
#include "engine/step/memory/reservations.h"
#include "engine/step/step_graphs.h"
#include "engine/step/team.h"

namespace dp {

// Declared in the order in which they are made; each may use those above it.
struct DataParallel::State {
  State(const Model& model, ResolvedOptions resolved);  // data_parallel_setup.cpp
  void make_workers();
  void make_communicators();
  void make_graphs();
  void make_tracers();
  void set_initial_weights();

  // The numbers of the next step. `update`: null for work without an update.
  kernels::StepInputs step_inputs(std::int64_t global_batch, const Optimizer* update = nullptr) const;
  // Error(usage) if batch normalisation would train on one value per channel, as in PyTorch.
  void require_two_values(std::int64_t rows, std::int64_t global_rows, int micro_batches) const;
  void reserve(const engine::BatchKind& batch) { reservations.reserve(batch); }
  void reserve(const engine::UpdateKind& update) {
    if (optimizer.reserve(update)) team.graphs->memory_changed();
  }
  // The parts of a step, one by one (step_by_step.cpp).
  const Tensor& forward_all(const Batch& batch, bool training);
  void backward(const Tensor& logits_grad);
  void update(const Optimizer& by);
  // With DataParallelOptions::own_loss: forward and the loss, which is added to own_stats.
  Loss own_loss(const Batch& batch, bool training);
  void end_step() { ++team.step, begun = false; }
  void updated() {  // after a step with an update
    optimizer.updated();
    for (const auto& worker : team.workers)
      if (worker->moving_average) worker->moving_average->updated();
  }
  // Call before weights or running statistics change.
  void begin_change() {
    forward_rows = 0;
    ++team.weights_version;
  }
  engine::Worker& first() const { return *team.workers.front(); }  // the master, or this rank's own
  // Whether the next step must not run as a graph, because of failpoints or because it is traced.
  bool step_is_eager() const {
    return !setup.failpoints.empty() || (first().tracer != nullptr && first().tracer->records_next());
  }

  engine::ModelSetup setup;
  // setup.options, with the cuts and the bucket size that were chosen on the devices: what options() returns.
  DataParallelOptions chosen_options;
  const std::string communicator_reason, threads_notice;
  std::vector<std::string> device_names, device_identities;
  engine::Team team;
  engine::Reservations reservations;
  engine::StateDict state_dict;
  engine::ReplicatedOptimizer optimizer;

  std::vector<MemoryUse> rank_memory;  // of all ranks, at the last prepare()
  bool begun = false;                  // forward() has used this step's dropout key
  std::int64_t forward_rows = 0;       // of the last forward(); 0: backward() is not allowed
  Tensor forward_images;               // of the last forward() or predict(); backward() reads them
  Tensor logits;
  Stats own_stats;  // of own_loss()
  // With an own loss, what evaluate() stores on the host after store_logits().
  struct OwnOutputs {
    std::int64_t most = 0;  // rows
    std::vector<std::int64_t> samples{};
    std::vector<std::int32_t> labels{};
    std::vector<std::byte> logits{}, targets{};

    void append(const Tensor& outputs, const Batch& batch);
  };
  std::optional<OwnOutputs> own_outputs{};
};

// `shape`: (images, ...). Error(usage) if the images do not have the model's input shape.
void check_images(const Shape& shape, const Model& model);
// Error(usage) for elements of another type. `what`: "labels".
void require_type(const Tensor& tensor, DType type, const char* what);

}  // namespace dp
