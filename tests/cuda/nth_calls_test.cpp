// The N-th CUDA or NCCL call of a training fails, for every N until none fails.
#include "cuda/engine/failing_steps.h"
#include "simulated_cuda/nccl/nccl_recorder.h"

using namespace dp;
using namespace dp::test;

namespace {

enum class Kind { cuda, nccl };

struct Run {
  std::string error;  // empty: none
  ErrorCode code{};
  std::vector<NamedTensor> weights;
};

// Trains three steps: the first eagerly, the second while it captures a graph, the third by launching the graph.
Run run(const DataParallelOptions& options) {
  ModelBuilder m("tiny", Shape{2, 6, 6});
  const auto x = m.relu(m.conv2d("conv", m.input(), {.out_channels = 3, .kernel = 3}));
  const Model model = m.build(m.linear("fc", m.flatten(x), {.out_features = 5}));
  const simt::SimulatedNccl nccl;
  Run made;
  try {
    DataParallel net(model, options);
    for (std::uint64_t step = 0; step < 3; ++step)
      net.train_step(random_batch(model, 4, step), Sgd{.lr = 0.01f, .momentum = 0.9f});
    net.take_stats();
    made.weights = net.weights();
  } catch (const Error& error) {
    made.error = error.what(), made.code = error.code();
  }
  check_nothing_left();
  CHECK(nccl.handles() == 0);
  return made;
}

// Trains again and again. In each run another call fails: every `stride`-th call, in at most `most` runs. A run must
// end with an error that names the failure, or with the weights of an undisturbed run.
void fail_each(Kind kind, const DataParallelOptions& options, int stride = 1, int most = 1 << 20) {
  SimulatedGpus machine(2);
  simt::simulation().protect_memory = simt::simulation().delays = false;  // faster
  NthFailure& failing = kind == Kind::cuda ? simt::failing_cuda_call : simt::failing_nccl_call;
  const Run undisturbed = run(options);
  REQUIRE(undisturbed.error == "");
  int points = 0, survived = 0;
  for (bool fails = true; fails && points < most; points += fails) {
    const int number = 1 + points * stride;
    INFO("call " << number);
    failing.arm(number);
    const Run failed = run(options);
    fails = !failing.armed();
    failing.arm(0);
    INFO(simt::failed_call.exchange("") << ": " << failed.error);
    if (failed.error.empty()) {
      CHECK(bit_equal(failed.weights, undisturbed.weights));
      survived += fails;
    } else {
      CHECK(failed.code == ErrorCode::device);
      CHECK_THAT(failed.error, Catch::Contains(kind == Kind::cuda ? "cudaErrorUnknown" : "NCCL"));
    }
    if (fails && points % 8 != 0) continue;
    const Run next = run(options);
    CHECK(next.error == "");
    CHECK(bit_equal(next.weights, undisturbed.weights));
  }
  WARN(points << " points, " << survived << " survived");
  CHECK(points > 5);
}

DataParallelOptions options_with(Comm comm, int stages = 1) {
  DataParallelOptions options = on_gpus(2, 2);
  options.comm = comm;
  options.timeout_seconds = 60;
  if (stages > 1) options.pipeline = {.stages = stages, .micro_batches = 2};
  return options;
}

}  // namespace

TEST_CASE("simulated GPUs: if a CUDA or NCCL call fails, the run ends with an error that names it and nothing leaks") {
  fail_each(Kind::cuda, options_with(Comm::p2p), 97, 8);
  fail_each(Kind::nccl, options_with(Comm::nccl), 11, 8);
}

TEST_CASE("simulated GPUs: any CUDA call of a run on one GPU may fail", "[nightly]") {
  DataParallelOptions options = options_with(Comm::p2p);
  options.devices = gpus({0});
  fail_each(Kind::cuda, options);
}

TEST_CASE("simulated GPUs: any CUDA call of a p2p run may fail", "[nightly]") {
  fail_each(Kind::cuda, options_with(Comm::p2p));
}

TEST_CASE("simulated GPUs: any CUDA call of a run with mixed precision may fail", "[nightly]") {
  DataParallelOptions options = options_with(Comm::p2p);
  options.amp = Amp::float16;
  fail_each(Kind::cuda, options);
}

TEST_CASE("simulated GPUs: any CUDA call of a pipeline may fail", "[nightly]") {
  fail_each(Kind::cuda, options_with(Comm::p2p, 2));
}

TEST_CASE("simulated GPUs: any CUDA call of an nccl run may fail", "[nightly]") {
  fail_each(Kind::cuda, options_with(Comm::nccl));
}

TEST_CASE("simulated GPUs: any NCCL call of a run may fail", "[nightly]") {
  fail_each(Kind::nccl, options_with(Comm::nccl));
}
