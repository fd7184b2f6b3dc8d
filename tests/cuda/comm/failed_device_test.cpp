// A GPU fails in a step. Dependent work on other GPUs never ends, but the run ends with an error.
#include "cuda/comm/ranks.h"
#include "cuda/engine/narrow_nets.h"
#include "cuda/simulated_gpus.h"
#include "dp/error.h"
#include "simulated_cuda/nccl/nccl_recorder.h"

using namespace dp;
using namespace dp::test;

namespace {

void check_ends(int gpus, Comm comm, Graphs graphs, int failed, int kernel) {
  INFO(gpus << " GPUs, " << (comm == Comm::nccl ? "nccl" : "p2p") << ", graphs " << static_cast<int>(graphs)
            << ", kernel " << kernel << " of cuda:" << failed << " fails");
  const simt::SimulatedNccl nccl;  // outlives the streams, whose work is not awaited
  SimulatedGpus machine(gpus);
  const ImpatientAborts aborts;
  simt::simulation().protect_memory = false;  // faster
  DataParallelOptions options = on_gpus(gpus, gpus);
  options.comm = comm;
  options.graphs = graphs;
  const Model model = narrow_convnet();
  const auto train = [&] {
    DataParallel net(model, options);
    for (std::uint64_t step = 0; step < 3; ++step) net.train_step(random_batch(model, 8, step), Sgd{.lr = 0.01f});
    net.take_stats();
    simt::simulation().failing_kernel = {.device = failed, .number = kernel};
    for (std::uint64_t step = 3; step < 6; ++step) net.train_step(random_batch(model, 8, step), Sgd{.lr = 0.01f});
    net.take_stats();
  };
  try {
    train();
    FAIL("nothing was thrown");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::device);
    CHECK_THAT(error.what(),
               Catch::Contains("cudaErrorIllegalAddress") && Catch::Contains("cuda:" + std::to_string(failed)));
  }
  CHECK(simt::simulation().failing_kernel.number == 0);
}

}  // namespace

TEST_CASE("simulated GPUs: the failure of one of two GPUs ends a p2p run with its error, though the other waits") {
  check_ends(2, Comm::p2p, Graphs::never, 1, 7);
}

TEST_CASE("simulated GPUs: a failure in the first kernel of one of two GPUs ends a p2p run with its error") {
  check_ends(2, Comm::p2p, Graphs::never, 0, 1);
}

TEST_CASE("simulated GPUs: a failure of one of two GPUs in a graph ends a p2p run with its error") {
  check_ends(2, Comm::p2p, Graphs::automatic, 1, 7);
}

TEST_CASE("simulated GPUs: the failure of one of four GPUs ends a p2p run with its error, though others wait") {
  check_ends(4, Comm::p2p, Graphs::never, 3, 7);
}

TEST_CASE("simulated GPUs: a failure of one of four GPUs in a graph ends a p2p run with its error") {
  check_ends(4, Comm::p2p, Graphs::automatic, 3, 7);
}

TEST_CASE("simulated GPUs: the failure of a GPU ends an nccl run with its error, though others wait") {
  for (const int gpus : {2, 4}) check_ends(gpus, Comm::nccl, Graphs::automatic, gpus - 1, 7);
  check_ends(2, Comm::nccl, Graphs::never, 0, 1);
}

TEST_CASE("nccl: a call on a device that has failed reports the device's error") {
  SimulatedGpus machine(2);
  const simt::SimulatedNccl nccl;
  Ranks ranks({0, 1}, "nccl");
  const auto fail_and_reduce = [](int rank, kernels::Context& context, kernels::Communicator& communicator) {
    if (rank != 0) return;
    const auto stream = context.make_stream();
    OnDevice<float> data(context, *stream, {1, 2});
    simt::simulation().failing_kernel = {.device = 0, .number = 1};
    void* const args[] = {data.data(), data.data()};
    context.make_op(kernels::Accumulate{1})->run(*stream, args, nullptr);
    CHECK_THROWS_WITH(stream->synchronize(), Catch::Contains("cudaErrorIllegalAddress"));
    communicator.all_reduce(data.data(), 2, DType::f32, *stream);
  };
  CHECK_THROWS_WITH(ranks.run(fail_and_reduce),
                    Catch::Contains("NCCL on cuda:0") && Catch::Contains("cudaErrorIllegalAddress"));
}
