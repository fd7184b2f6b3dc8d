// The cases that graphs_test.cpp omits: deeper networks as graphs, on more GPUs.
#include "cuda/engine/graph_runs.h"
#include "cuda/simulated_gpus.h"

using namespace dp;
using namespace dp::test;

namespace {

constexpr const char* kRecorded = " nodes";

}  // namespace

TEST_CASE("simulated GPUs: a residual network's step as a graph has the bits of the eager step") {
  const Model model = residual_net(/*relu=*/true, /*dropout=*/true);
  for (const int gpus : {1, 2})
    for (const BatchNormMode norm : {BatchNormMode::sync, BatchNormMode::pooled}) {
      SimulatedGpus machine(gpus, norm == BatchNormMode::sync ? simt::Peer::works : simt::Peer::none);
      DataParallelOptions options = on_gpus(gpus, gpus);
      options.batch_norm = norm;
      if (norm == BatchNormMode::pooled) options.loss = LossAt::gathered;
      const Course eager = course_of(model, options, false), graphs = course_of(model, options, true);
      CHECK(graphs == eager);
      CHECK_THAT(graphs.steps, Catch::Contains(kRecorded));
    }
}

TEST_CASE("simulated GPUs: a narrow resnet18's step as a graph has the bits of the eager step") {
  const Model model = narrow_resnet(/*relu=*/true);
  int variant = 0;
  for (const int gpus : {1, 2, 4}) {
    SimulatedGpus machine(gpus);
    simt::simulation().protect_memory = false;  // faster
    DataParallelOptions options = on_gpus(gpus, gpus);
    options.reduce = kReductions[variant++];
    options.batch_norm = gpus == 4 ? BatchNormMode::sync : BatchNormMode::master;
    const Course eager = course_of(model, options, false), graphs = course_of(model, options, true);
    CHECK(graphs == eager);
    CHECK_THAT(graphs.steps, Catch::Contains(kRecorded));
  }
}
