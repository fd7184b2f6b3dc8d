// Gradient reduction in bfloat16 over nccl, with NCCL's own order and rounding.
#include "cuda/engine/graph_runs.h"
#include "cuda/simulated_gpus.h"
#include "simulated_cuda/nccl/nccl_recorder.h"
#include "support/rounded_sums.h"

using namespace dp;
using namespace dp::test;

namespace {

DataParallelOptions in_small_buckets(int gpus, Reduce reduce) {
  DataParallelOptions options = without_dropout(on_gpus(gpus, gpus));
  options.comm = Comm::nccl;
  options.reduce = reduce;
  options.bucket_bytes = 4000;
  return options;
}

}  // namespace

TEST_CASE("nccl: a bfloat16 reduction between two GPUs has the bits of p2p") {
  SimulatedGpus machine(2);
  simt::simulation().protect_memory = false;  // faster
  const simt::SimulatedNccl nccl;
  check_rounded_sums(narrow_convnet(), in_small_buckets(2, Reduce::master), 9);
}

TEST_CASE(
    "nccl: a bfloat16 reduction transfers gradients as bfloat16, weights as float32, and trains within rounding") {
  for (const Reduce reduce : kReductions) {
    SimulatedGpus machine(4);
    simt::simulation().protect_memory = simt::simulation().delays = false;  // faster
    const simt::SimulatedNccl nccl;
    check_rounded_training(narrow_convnet(), in_small_buckets(4, reduce), 9);
    std::size_t sums = 0, rounded_sums = 0;
    for (const std::string& launch : nccl.launches(0)) {
      if (launch.find(" of 1 ") != std::string::npos) continue;  // from communicator creation
      const bool low = launch.find("bfloat16") != std::string::npos;
      const bool sum = launch.find("reduce") != std::string::npos;
      sums += sum, rounded_sums += sum && low;
      CHECK((sum || !low));
    }
    CHECK(rounded_sums > 0);
    CHECK(sums == 2 * rounded_sums);  // one of the two trainings rounds
    for (int device = 1; device < 4; ++device) CHECK(nccl.launches(device) == nccl.launches(0));
  }
}

TEST_CASE("nccl: with a bfloat16 reduction steps as graphs have the bits of eager steps") {
  for (const Reduce reduce : kReductions) {
    SimulatedGpus machine(2);
    simt::simulation().protect_memory = simt::simulation().delays = false;  // faster
    const simt::SimulatedNccl nccl;
    simt::SimulatedNccl::allow_a_graph_for_each_replica();
    DataParallelOptions options = in_small_buckets(2, reduce);
    options.reduce_dtype = DType::bf16;
    options.graphs = Graphs::always;
    if (reduce == Reduce::master) options.amp = Amp::float16, options.loss_scale.initial = 512;
    const Course eager = course_of(narrow_convnet(), options, false),
                 graphs = course_of(narrow_convnet(), options, true);
    CHECK(graphs == eager);
    CHECK_THAT(graphs.steps, Catch::Contains(" nodes"));
  }
}
