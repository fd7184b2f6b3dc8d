// Training over the simulated NCCL, with steps as graphs.
#pragma once

#include <string>

#include "cuda/engine/graph_runs.h"
#include "cuda/simulated_gpus.h"
#include "simulated_cuda/nccl/nccl_recorder.h"

namespace dp::test {

inline DataParallelOptions with_nccl(int gpus, Reduce reduce) {
  DataParallelOptions options = on_gpus(gpus, gpus);
  options.comm = Comm::nccl;
  options.reduce = reduce;
  options.bucket_bytes = 4000;
  options.graphs = Graphs::always;
  return options;
}

// Number of a device's collectives that were part of a graph.
inline std::size_t in_graphs(const simt::SimulatedNccl& nccl, int device) {
  std::size_t count = 0;
  for (const std::string& launch : nccl.launches(device)) count += launch.ends_with(" in a graph");
  return count;
}

// Synchronised statistics: a graph contains collectives of two communicators, for gradients and for statistics.
inline void check_two_communicators(const Model& model, int gpus) {
  SimulatedGpus machine(gpus);
  simt::simulation().protect_memory = simt::simulation().delays = false;  // faster
  const simt::SimulatedNccl nccl;
  simt::SimulatedNccl::allow_a_graph_for_each_replica();
  DataParallelOptions options = with_nccl(gpus, Reduce::sharded);
  options.batch_norm = BatchNormMode::sync;
  options.clip_grad_norm = 0.5;
  options.grad_accum_steps = 2;
  CHECK(course_of(model, options, true) == course_of(model, options, false));
  CHECK(in_graphs(nccl, 0) > 10);
  for (int device = 1; device < gpus; ++device) CHECK(nccl.launches(device).size() == nccl.launches(0).size());
}

}  // namespace dp::test
