// Short runs of the engine under all rules of the simulated CUDA. Its reports fail the test case (SimulatedGpus).
#pragma once

#include "cuda/simulated_gpus.h"
#include "simulated_cuda/nccl/nccl_recorder.h"
#include "support/catch.h"
#include "support/training.h"

namespace dp::test {

struct RulesRun {
  int gpus;
  Comm comm;
  Reduce reduce;
  BatchNormMode norm;
  Amp amp;
  Graphs graphs;
};

// A convolution, a normalisation, dropout and a linear layer. Its 5,000 parameters fill several buckets of several
// blocks.
inline Model rules_model() {
  ModelBuilder m("rules_model", Shape{2, 6, 6});
  auto x = m.relu(m.batch_norm2d("bn", m.conv2d("conv", m.input(), {.out_channels = 8, .kernel = 3, .padding = 1})));
  x = m.relu(m.linear("fc1", m.dropout("dropout", m.flatten(x), 0.25f), {.out_features = 16}));
  return m.build(m.linear("fc2", x, {.out_features = 5}));
}

// Three steps: the first eager, the second recorded, the third launched if graphs are used. Then an evaluation.
inline void check_run(const RulesRun& run) {
  INFO(run.gpus << " GPUs, comm " << static_cast<int>(run.comm) << ", reduce " << static_cast<int>(run.reduce)
                << ", batch normalisation " << static_cast<int>(run.norm) << ", amp " << static_cast<int>(run.amp)
                << ", graphs " << static_cast<int>(run.graphs));
  static const Model model = rules_model();
  SimulatedGpus machine(run.gpus);
  simt::simulation().protect_memory = false;  // faster
  const simt::SimulatedNccl nccl;
  if (run.graphs == Graphs::always) simt::SimulatedNccl::allow_a_graph_for_each_replica();
  DataParallelOptions options = on_gpus(run.gpus, run.gpus);
  options.comm = run.comm;
  options.reduce = run.reduce;
  options.batch_norm = run.norm;
  options.amp = run.amp;
  options.graphs = run.graphs;
  options.bucket_bytes = 8000;
  {
    DataParallel net(model, options);
    const int connections = nccl.late_connections();  // for sends, at construction
    const std::int64_t rows = 2 * run.gpus + 1;
    for (std::uint64_t step = 0; step < 3; ++step)
      net.train_step(random_batch(model, rows, step), Sgd{.lr = 0.01f, .momentum = 0.9f});
    net.evaluate(random_batch(model, rows));
    CHECK(net.take_stats().samples == 4 * rows);
    CHECK(net.replicas_identical());
    CHECK((net.describe_steps().find(" nodes") != std::string::npos) ==
          (run.graphs == Graphs::always ||
           (run.graphs == Graphs::automatic && (run.comm == Comm::p2p || run.gpus == 1))));
    CHECK(nccl.late_connections() == connections);
  }
}

inline constexpr Reduce kRulesReductions[] = {Reduce::master, Reduce::all_reduce, Reduce::sharded};
inline constexpr BatchNormMode kRulesNorms[] = {BatchNormMode::master, BatchNormMode::sync, BatchNormMode::pooled};
inline constexpr Amp kRulesAmps[] = {Amp::off, Amp::bfloat16, Amp::float16};
inline constexpr Graphs kRulesGraphs[] = {Graphs::automatic, Graphs::never, Graphs::always};

}  // namespace dp::test
