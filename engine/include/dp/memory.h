// Device memory used by training.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dp/device.h"
#include "dp/model.h"
#include "dp/optimizer.h"
#include "dp/parallel_options.h"

namespace dp {

// Bytes on one device, by purpose.
struct MemoryUse {
  std::size_t weights = 0, gradients = 0;  // including their 16-bit copies; weights: and those folded for evaluation
  std::size_t optimizer = 0;               // this replica's slice of the optimizer state
  std::size_t statistics = 0;              // of batch normalisation
  std::size_t average = 0;                 // moving average of the weights, on the master
  std::size_t activations = 0;             // and their gradients, in the plan of the largest shard
  std::size_t workspace = 0;               // of that plan's ops
  std::size_t other = 0;                   // gathered logits, copies of inputs, norms
  // On the master's GPUs: the copy that DataParallel::snapshot() makes if twice as much is free, else without one. Not
  // in total().
  std::size_t snapshot = 0;

  std::size_t total() const {
    return weights + gradients + optimizer + statistics + average + activations + workspace + other;
  }
};

// Predicts DataParallel::memory_use() of each device after prepare(train_batches, eval_batches) and a snapshot, without
// allocating this memory. On GPUs it excludes input staging (three times a batch, or the device-resident images) and
// what only the tuner determines: the workspace of the chosen algorithms and bucket sizes. Throws what the constructor
// of DataParallel would throw.
std::vector<MemoryUse> estimate_memory(const Model& model, const DataParallelOptions& options,
                                       const std::vector<std::int64_t>& train_batches,
                                       const std::vector<std::int64_t>& eval_batches = {},
                                       const Optimizer& optimizer = Sgd{.momentum = 0.9f});
// Bytes that can be allocated on the device now; 0: unknown.
std::size_t free_memory(const Device& device);
// For programs, before they start threads: blocks of 1 MiB or more go back to the system when they are freed. The C
// library otherwise keeps blocks of up to 32 MiB, the more the larger those freed before, and no estimate can tell how
// many.
void return_freed_memory();
// The largest global batch, for training and evaluation, with which no device needs more than `bytes`; 0 if none fits.
// Found by bisection to within 1/256 below the true maximum.
std::int64_t largest_batch(const Model& model, const DataParallelOptions& options, std::size_t bytes,
                           const Optimizer& optimizer = Sgd{.momentum = 0.9f});

}  // namespace dp
