// Training steps as CUDA graphs: same bits and same launches as eager steps. Fallback if recording fails.
#include "cuda/engine/amp_runs.h"

using namespace dp;
using namespace dp::test;

namespace {

constexpr const char* kRecorded = " nodes";

// Options that differ from the defaults. `variant` cycles through the values of each option, without all combinations.
DataParallelOptions varied(int gpus, int variant) {
  DataParallelOptions options = on_gpus(gpus, gpus);
  options.reduce = kReductions[variant % 3];
  if (variant % 2 == 1) options.clip_grad_norm = 0.5;
  if (variant % 3 == 1) options.grad_accum_steps = 2;
  if (variant % 3 == 2) options.ema_decay = 0.9;
  options.bucket_bytes = 4000;
  return options;
}

}  // namespace

TEST_CASE("simulated GPUs: a step as a graph has the bits of the eager step, whatever happens between steps") {
  const Model model = narrow_convnet();
  int variant = 0;
  for (const int gpus : {1, 2, 4})
    for (int i = 0; i < 3; ++i, ++variant) {
      SimulatedGpus machine(gpus);
      simt::simulation().protect_memory = false;  // faster
      simt::simulation().delays = gpus == 2;
      INFO(gpus << " GPUs, variant " << variant);
      const Course eager = course_of(model, varied(gpus, variant), false),
                   graphs = course_of(model, varied(gpus, variant), true);
      CHECK(graphs == eager);
      CHECK_THAT(graphs.steps, Catch::Contains(kRecorded));
      CHECK_THAT(graphs.steps, Catch::Contains(gpus > 1 ? "one graph of all replicas" : "one graph for each replica"));
      CHECK(eager.steps == "steps run eagerly: set by the caller (--graphs never)");
    }
}

TEST_CASE("simulated GPUs: a mixed-precision step as a graph scales its loss on the device") {
  const Model model = narrow_convnet();
  for (const Amp amp : {Amp::bfloat16, Amp::float16}) {
    SimulatedGpus machine(2);
    simt::simulation().protect_memory = false;  // faster
    DataParallelOptions options = on_gpus(2, 2);
    options.amp = amp;
    options.loss_scale.initial = 0x1p22f;  // overflows in some steps
    options.loss_scale.growth_interval = 2;
    const Course eager = course_of(model, options, false), graphs = course_of(model, options, true);
    CHECK(graphs == eager);
    CHECK_THAT(graphs.steps, Catch::Contains(kRecorded));
  }
}

TEST_CASE("simulated GPUs: logical shards and replicas that share a GPU run as graphs") {
  SimulatedGpus machine(2);
  const Model model = narrow_convnet();
  for (const int replicas : cases({1, 4}, {4})) {
    DataParallelOptions options = on_gpus(replicas, 2);
    options.logical_shards = 4;
    const Course eager = course_of(model, options, false), graphs = course_of(model, options, true);
    CHECK(graphs == eager);
    CHECK_THAT(graphs.steps, Catch::Contains(kRecorded));
  }
}

TEST_CASE("simulated GPUs: the graph of a step makes the launches of the eager step in the same order") {
  const Model model = narrow_convnet();
  for (const int gpus : cases({1, 2}, {2}))
    for (const Reduce reduce : kReductions) {
      SimulatedGpus machine(gpus);
      DataParallelOptions options = on_gpus(gpus, gpus);
      options.reduce = reduce;
      options.bucket_bytes = 4000;
      const auto eager = launches_of_steps(model, options, false), graphs = launches_of_steps(model, options, true);
      std::size_t launches = 0;
      for (const auto& [stream, of_stream] : eager) launches += of_stream.size();
      CHECK(launches > 30);
      CHECK(eager.size() == graphs.size());
      CHECK(eager == graphs);
    }
}

TEST_CASE("simulated GPUs: the graph of a residual network's step makes the launches of the eager step") {
  const Model model = models::resnet18({.classes = 10, .input = {3, 4, 4}, .width = 4});
  check_launches_of_residual(model, Amp::off, BatchNormMode::sync);         // logical shards
  check_launches_of_residual(model, Amp::bfloat16, BatchNormMode::master);  // micro-batches
  check_launches_of_residual(model, Amp::float16, BatchNormMode::sync);
}

TEST_CASE("simulated GPUs: if a capture fails at any place, steps run eagerly to the same bits") {
  const Model model = narrow_convnet();
  for (const int gpus : {1, 2}) {
    SimulatedGpus machine(gpus);
    simt::simulation().protect_memory = simt::simulation().delays = false;  // faster
    DataParallelOptions options = varied(gpus, 1);
    const Course eager = course_of(model, options, false);
    simt::simulation().fail_begin_capture = true;
    const Course refused = course_of(model, options, true);
    simt::simulation().fail_begin_capture = false;
    CHECK(refused == eager);
    CHECK_THAT(refused.steps,
               Catch::Contains("steps run eagerly: a graph capture failed: capturing a stream failed on cuda:0: "
                               "cudaErrorNotSupported"));
    int failed = 0;
    for (int k = 1; k < 300; k += 1 + k) {
      simt::simulation().fail_capture = k;
      const Course course = course_of(model, options, true);
      INFO(gpus << " GPUs, operation " << k);
      CHECK(course == eager);
      if (simt::simulation().fail_capture == 0) {
        ++failed;
        CHECK_THAT(course.steps,
                   Catch::Contains("a graph capture failed") && Catch::Contains("cudaErrorStreamCapture"));
      }
      simt::simulation().fail_capture = 0;
      CHECK(simt::live().graphs == 0);
    }
    CHECK(failed > 4);
  }
}

TEST_CASE("simulated GPUs: if a graph cannot be instantiated, steps run eagerly, and a failed launch is an error") {
  const Model model = narrow_convnet();
  for (const int gpus : {1, 2}) {
    SimulatedGpus machine(gpus);
    simt::simulation().protect_memory = simt::simulation().delays = false;  // faster
    const DataParallelOptions options = on_gpus(gpus, gpus);
    const Course eager = course_of(model, options, false);
    for (int simt::Simulation::*const control : {&simt::Simulation::fail_instantiate, &simt::Simulation::fail_upload}) {
      simt::simulation().*control = 1;
      const Course course = course_of(model, options, true);
      CHECK(simt::simulation().*control == 0);
      CHECK(course == eager);
      CHECK_THAT(course.steps,
                 Catch::Contains("a graph capture failed") && Catch::Contains("cudaErrorMemoryAllocation"));
      CHECK(simt::live().graphs == 0);
    }
    simt::simulation().fail_graph_launch = 2;
    CHECK_THROWS_WITH(course_of(model, options, true), Catch::Contains("launching a graph failed on cuda:0: "
                                                                       "cudaErrorMemoryAllocation"));
    CHECK(simt::live().graphs == 0);
    CHECK(simt::live().streams == 0);
  }
}

TEST_CASE("simulated GPUs: traced steps and steps with failpoints run eagerly, all others as graphs") {
  SimulatedGpus machine(2);
  const Model model = narrow_convnet();
  DataParallelOptions options = on_gpus(2, 2);
  options.trace_first = 3;
  options.trace_steps = 2;
  CHECK(course_of(model, options, true) == course_of(model, options, false));
  CHECK_THAT(course_of(model, options, true).steps, Catch::Contains(kRecorded));
  setenv("DP_FAIL", "stall:forward:step1000:1ms", 1);
  const Course watched = course_of(model, options, true);
  unsetenv("DP_FAIL");
  CHECK_THAT(watched.steps, !Catch::Contains(kRecorded));
}

TEST_CASE("simulated GPUs: a step as a graph is timed as one piece, and failures after its launch are reported") {
  SimulatedGpus machine(2);
  const Model model = narrow_convnet();
  DataParallel net(model, on_gpus(2, 2));
  const Batch batch = random_batch(model, 8);
  for (int step = 0; step < 5; ++step) net.train_step(batch, Sgd{.lr = 0.01f});
  net.take_stats();
  net.train_step(batch, Sgd{.lr = 0.01f});
  CHECK(net.take_phase_times().front().graph > 0);
  Batch bad = random_batch(model, 8);
  bad.images.span<float>()[3] = std::numeric_limits<float>::quiet_NaN();
  net.train_step(bad, Sgd{.lr = 0.01f});
  CHECK_THROWS_WITH(net.take_stats(), Catch::Contains("not finite"));
}
