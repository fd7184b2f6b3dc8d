// Times ops as a training step runs them: captured in a graph, on data that is not in the L2 cache.
#pragma once

#include <span>
#include <vector>

#include "kernels/cuda/cuda_op.h"
#include "kernels/cuda/runtime/owner.h"

namespace dp::kernels::cuda {

class TrialTimer {
 public:
  struct Argument {
    void* data = nullptr;
    std::size_t bytes = 0;  // 0: the op has no such argument
  };
  // Of the current device, on `stream`, which outlives this, as do the arguments.
  TrialTimer(cudaStream_t stream, std::vector<Argument> arguments);

  // Consecutive runs of one op. The runs take turns on copies of the arguments that together exceed the cache.
  struct Runs {
    GraphExecHandle graph;  // null: the op cannot be captured; the runs are launched one by one
    int count = 0;
  };
  Runs prepare(CudaOp& op, int count, void* workspace);
  // Of one of them. The cache is overwritten first. Error(device) where a run fails.
  double microseconds_of(const Runs& runs, CudaOp& op, void* workspace);

 private:
  void copy_arguments(int runs);
  std::span<void* const> arguments_of(int run) const { return copies_[static_cast<std::size_t>(run) % copies_.size()]; }

  cudaStream_t stream_;
  EventHandle begin_, end_;
  const std::vector<Argument> arguments_;
  std::size_t overwritten_bytes_ = 0;
  DeviceMemory overwritten_;          // null: there is no memory for it
  std::size_t most_copies_ = 1;       // the first are the arguments themselves
  std::vector<DeviceMemory> memory_;  // of the others
  std::vector<std::vector<void*>> copies_;
};

}  // namespace dp::kernels::cuda
