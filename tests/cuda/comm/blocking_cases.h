// Training steps with many options. None may make a blocking call.
#pragma once

#include <string>
#include <vector>

#include "cuda/simulated_gpus.h"
#include "simulated_cuda/nccl/nccl_recorder.h"
#include "support/catch.h"
#include "support/training.h"

namespace dp::test {

inline constexpr Sgd kMomentum{.lr = 0.01f, .momentum = 0.9f, .weight_decay = 1e-3f};

class Logged {
 public:
  Logged() { simt::simulation().log_blocking_calls = true; }
  ~Logged() { simt::simulation().log_blocking_calls = false; }
  std::vector<std::string> calls() const { return simt::take_blocking_calls(); }
};

// The blocking calls of three steps, the second of which is recorded. With announced sizes, also those of steps on a
// smaller batch and of an evaluation.
inline std::vector<std::string> calls_of_steps(const Model& model, const DataParallelOptions& options, bool prepared) {
  DataParallel net(model, options);
  if (prepared) net.prepare({8, 5}, {7});
  const Logged log;
  for (std::uint64_t step = 0; step < 3; ++step) net.train_step(random_batch(model, 8, step), kMomentum);
  for (std::uint64_t step = 0; prepared && step < 2; ++step) net.train_step(random_batch(model, 5, step), kMomentum);
  if (prepared) net.evaluate(random_batch(model, 7));
  net.take_stats();
  std::vector<std::string> calls = log.calls();
  CHECK(net.replicas_identical());
  return calls;
}

struct Case {
  const char* name;
  void (*change)(DataParallelOptions&);
};
inline constexpr Case kCases[] = {
    {"as they come", [](DataParallelOptions&) {}},
    {"small buckets", [](DataParallelOptions& o) { o.bucket_bytes = 4000; }},
    {"clipped", [](DataParallelOptions& o) { o.clip_grad_norm = 0.5; }},
    {"gathered loss", [](DataParallelOptions& o) { o.loss = LossAt::gathered; }},
    {"synchronised normalisation", [](DataParallelOptions& o) { o.batch_norm = BatchNormMode::sync; }},
    {"pooled normalisation", [](DataParallelOptions& o) { o.batch_norm = BatchNormMode::pooled; }},
    {"bfloat16", [](DataParallelOptions& o) { o.amp = Amp::bfloat16; }},
    {"float16", [](DataParallelOptions& o) { o.amp = Amp::float16; }},
    {"sums in bfloat16", [](DataParallelOptions& o) { o.reduce_dtype = DType::bf16; }},
    {"micro-batches, average", [](DataParallelOptions& o) { o.grad_accum_steps = 2, o.ema_decay = 0.9; }},
};

inline void check_case(const Model& model, const Case& one, Comm comm, Reduce reduce, bool prepared) {
  simt::SimulatedNccl::allow_a_graph_for_each_replica();
  for (const bool graphs : {false, true}) {
    DataParallelOptions options = on_gpus(2, 2);
    options.comm = comm;
    options.reduce = reduce;
    options.graphs = graphs ? Graphs::always : Graphs::never;
    one.change(options);
    INFO(one.name << ", " << (comm == Comm::nccl ? "nccl" : "p2p") << ", reduce " << static_cast<int>(reduce)
                  << (graphs ? ", graphs" : "") << (prepared ? ", prepared" : ""));
    CHECK(calls_of_steps(model, options, prepared) == std::vector<std::string>{});
  }
}

inline void check_case_on_two(const Model& model, const Case& one, Comm comm, bool prepared) {
  SimulatedGpus machine(2);
  simt::simulation().delays = simt::simulation().protect_memory = false;  // faster
  const simt::SimulatedNccl nccl;
  check_case(model, one, comm, prepared ? Reduce::sharded : Reduce::master, prepared);
}

}  // namespace dp::test
