// Copies the state for a checkpoint while training goes on. Forward and backward passes do not change weights or
// optimizer state, so another thread copies them during the next step. The update of that step waits for the copy. A
// GPU first copies them within its memory, which takes little time, and the other thread reads that copy during the
// next steps. Without room for it, training waits for a copy to the host.
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
  // Call it between steps, on every rank. Fills weights, optimizer, average and average_updates of `to`. Do not use
  // them before finish() has returned. A tensor of `to` with the right shape is overwritten if nothing else refers to
  // it.
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
    std::vector<std::vector<ArenaPart>*> arenas;  // all that `parameters` refer to
    DeviceCopy* copy = nullptr;                   // what finish() reads instead of the arenas
  };

  void add_weights(NamedTensors& to, bool average);
  void add_slot(NamedTensors& to, std::size_t slot, const std::string& name, std::size_t next);
  bool copy_on_device(Worker& first, Stage& stage);
  void copy_parameters(const Stage& stage, OpenDevice& device);
  void read(const Stage& stage);
  const Worker& worker(std::size_t stage) const { return *team_.workers[stage]; }  // of the first replica
  void release();

  Team& team_;
  StateDict& state_dict_;
  std::deque<std::vector<ArenaPart>> parts_;
  std::vector<Stage> stages_;
  bool holds_updates_ = false, holds_copies_ = false;
};

}  // namespace dp::engine
