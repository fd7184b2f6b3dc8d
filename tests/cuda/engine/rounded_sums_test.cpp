// Gradient reduction in bfloat16 between simulated GPUs: over p2p, and over nccl in a separate program.
#include "support/rounded_sums.h"
#include "cuda/engine/graph_runs.h"
#include "cuda/simulated_gpus.h"

using namespace dp;
using namespace dp::test;

namespace {

DataParallelOptions on_p2p(int replicas, int devices) {
  DataParallelOptions options = on_gpus(replicas, devices);
  options.comm = Comm::p2p;
  return options;
}

}  // namespace

TEST_CASE("bfloat16 reduction on simulated GPUs: sums have the bits of the fixed tree, rounded once") {
  for (const int gpus : {2, 4}) {
    SimulatedGpus machine(gpus);
    simt::simulation().protect_memory = simt::simulation().delays = gpus == 2;  // faster
    check_rounded_sums(narrow_convnet(), on_p2p(gpus, gpus), 9);
  }
  SimulatedGpus machine(2, simt::Peer::none);  // through the host
  check_rounded_sums(narrow_convnet(), on_p2p(3, 2), 9);
}

TEST_CASE(
    "bfloat16 reduction on simulated GPUs: training stays within rounding, and weights and optimizer state stay "
    "float32") {
  for (const int gpus : {2, 4}) {
    SimulatedGpus machine(gpus);
    simt::simulation().protect_memory = simt::simulation().delays = false;  // faster
    for (const Reduce reduce : kReductions) {
      DataParallelOptions options = without_dropout(on_p2p(gpus, gpus));
      options.reduce = reduce;
      if (gpus == 2) options.clip_grad_norm = 0.5;
      check_rounded_training(narrow_convnet(), options, 9);
    }
  }
}

TEST_CASE(
    "bfloat16 reduction on simulated GPUs: steps as graphs have the bits of eager steps, also in mixed precision") {
  const Model model = narrow_convnet();
  int variant = 0;
  for (const int gpus : {2, 4})
    for (const Reduce reduce : kReductions) {
      SimulatedGpus machine(gpus);
      simt::simulation().protect_memory = false;  // faster
      simt::simulation().delays = gpus == 2;
      DataParallelOptions options = on_p2p(gpus, gpus);
      options.reduce_dtype = DType::bf16;
      options.reduce = reduce;
      options.bucket_bytes = 4000;
      options.amp = variant == 1 || variant == 3   ? Amp::bfloat16
                    : variant == 2 || variant == 4 ? Amp::float16
                                                   : Amp::off;
      options.loss_scale.initial = 512;
      if (variant % 2 == 1) options.clip_grad_norm = 0.5;
      ++variant;
      INFO(gpus << " GPUs, reduce " << static_cast<int>(reduce));
      const Course eager = course_of(model, options, false), graphs = course_of(model, options, true);
      CHECK(graphs == eager);
      CHECK_THAT(graphs.steps, Catch::Contains("one graph of all replicas") && Catch::Contains(" nodes"));
      options.reduce_dtype = DType::f32;
      CHECK_FALSE(bit_equal(course_of(model, options, false).weights, eager.weights));
    }
}

TEST_CASE("bfloat16 reduction on simulated GPUs: logical shards give the same bits on 1, 2 and 4") {
  const Model model = narrow_convnet();
  std::vector<NamedTensor> expected;
  for (const int gpus : {1, 2, 4}) {
    SimulatedGpus machine(gpus);
    simt::simulation().protect_memory = simt::simulation().delays = false;  // faster
    DataParallelOptions options = on_p2p(gpus, gpus);
    options.logical_shards = 4;
    options.bucket_bytes = 4000;
    const auto got = rounded_course(model, options, DType::bf16, 9).weights;
    if (expected.empty()) expected = got;
    CHECK(bit_equal(got, expected));
    if (gpus == 1) CHECK_FALSE(bit_equal(got, rounded_course(model, options, DType::f32, 9).weights));
  }
}

TEST_CASE("bfloat16 reduction on simulated GPUs: every replica sees an overflow of the scaled gradient") {
  const Model model = narrow_convnet();
  for (const Reduce reduce : kReductions) {
    SimulatedGpus machine(2);
    simt::simulation().protect_memory = false;  // faster
    DataParallelOptions options = without_dropout(on_p2p(2, 2));
    options.amp = Amp::float16;
    options.reduce = reduce;
    options.reduce_dtype = DType::bf16;
    options.loss_scale.initial = 0x1p25f;
    DataParallel net(model, options);
    const auto origin = net.weights();
    net.train_step(random_batch(model, 9), Sgd{.lr = 0.05f, .momentum = 0.9f});
    CHECK(bit_equal(net.weights(), origin));
    const Stats stats = net.take_stats();
    CHECK(stats.skipped == 1);
    CHECK(stats.loss_scale == 0x1p24f);
  }
}

TEST_CASE("bfloat16 reduction on simulated GPUs: memory equals the estimate") {
  const Model model = narrow_convnet();
  SimulatedGpus machine(2);
  DataParallelOptions options = on_p2p(2, 2);
  options.reduce_dtype = DType::bf16;
  DataParallel net(model, options);
  net.prepare({10});
  CHECK(net.memory_use(1).gradients == estimate_memory(model, options, {10}).at(1).gradients);
  CHECK(net.memory_use(1).gradients > net.memory_use(1).weights);
}
