// Times ops as in a training step: captured in a graph, with data that is not in the L2 cache (docs/decisions/0032).
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
    std::size_t bytes = 0;  // 0: the op does not have this argument
  };
  // `stream` and the arguments belong to the current device and outlive the timer.
  TrialTimer(cudaStream_t stream, std::vector<Argument> arguments);

  // Consecutive runs of one op. They alternate between copies of the arguments. Together the copies exceed the cache.
  struct Runs {
    GraphExecHandle graph;  // null: capture failed; the runs are launched one by one
    int count = 0;
  };
  Runs prepare(CudaOp& op, int count, void* workspace);
  // The time of one run. Overwrites the cache first. Error(device) if a run fails.
  double microseconds_of(const Runs& runs, CudaOp& op, void* workspace);

 private:
  void copy_arguments(int runs);
  std::span<void* const> arguments_of(int run) const { return copies_[static_cast<std::size_t>(run) % copies_.size()]; }

  cudaStream_t stream_;
  EventHandle begin_, end_;
  const std::vector<Argument> arguments_;
  std::size_t overwritten_bytes_ = 0;
  DeviceMemory overwritten_;          // null: memory was short
  std::size_t most_copies_ = 1;       // including the original arguments
  std::vector<DeviceMemory> memory_;  // of the copies, without the original
  std::vector<std::vector<void*>> copies_;
};

}  // namespace dp::kernels::cuda
