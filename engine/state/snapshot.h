// The state of a checkpoint, copied while training goes on. The forward and backward pass of a step only read weights
// and the optimizer's state. So they are copied by another thread, and the next update waits for it. Devices whose
// memory the host cannot read are copied at once.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "dp/checkpoint.h"
#include "engine/state/replicated_optimizer.h"
#include "engine/state/state_dict.h"

namespace dp::engine {

class Snapshot {
 public:
  // Between steps. Sets weights, optimizer, average and average_updates of `to`, which must not change until finish().
  // Tensors there that nothing else uses keep their memory if they fit. With several ranks, every rank calls it.
  Snapshot(Team& team, StateDict& state_dict, ReplicatedOptimizer& optimizer, Checkpoint& to);
  ~Snapshot() { release(); }
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  void finish();  // on any thread, once

 private:
  struct ParameterCopy {
    const ParameterTable* table;
    int entry;
    const std::vector<ArenaPart>* parts;
    Tensor* to;
  };
  struct BufferCopy {
    const BufferSpec* spec;
    const std::byte* statistics;
    Tensor* to;
  };
  struct Stage {
    std::vector<ParameterCopy> parameters;
    std::vector<BufferCopy> buffers;
  };

  void add_weights(NamedTensors& to, bool average);
  void add_slot(NamedTensors& to, std::size_t slot, const std::string& name, std::size_t next);
  void copy_parameters(const Stage& stage, OpenDevice& device);
  const Worker& worker(std::size_t stage) const { return *team_.workers[stage]; }  // of the first replica
  void release();

  Team& team_;
  StateDict& state_dict_;
  std::deque<std::vector<ArenaPart>> parts_;
  std::vector<Stage> stages_;
  bool holds_updates_ = false;
};

}  // namespace dp::engine
