// Training steps as graphs with NCCL collectives: one graph per replica.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <mutex>
#include <set>
#include <thread>

#include "cuda/comm/nccl_runs.h"
#include "cuda/engine/amp_runs.h"
#include "process_group/group_ranks.h"
#include "simulated_cuda/nccl/nccl_state.h"
#include "support/patience.h"

using namespace dp;
using namespace dp::test;

namespace {

// Output on standard error.
std::string printed_by(const std::function<void()>& call) {
  std::FILE* const file = std::tmpfile();
  const int before = ::dup(STDERR_FILENO);
  ::dup2(::fileno(file), STDERR_FILENO);
  call();
  ::dup2(before, STDERR_FILENO);
  ::close(before);
  std::rewind(file);
  std::string text(4096, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  return text;
}

// Counts the live graphs at each abort. Since NCCL 2.26 ncclCommAbort waits until no graph uses the communicator.
class AbortRecorder {
 public:
  AbortRecorder() {
    real = kernels::cuda::nccl().api;
    static kernels::cuda::NcclApi api;
    api = *real;
    api.comm_abort = [](kernels::cuda::NcclComm comm) {
      const std::scoped_lock lock(mutex);
      devices.insert(comm->device);
      graphs.push_back({devices.size(), simt::live().graphs});
      return real->comm_abort(comm);
    };
    kernels::cuda::provide_nccl({&api, "recorded", {}});
    devices.clear();
    graphs.clear();
  }

  struct Abort {
    std::size_t devices;  // number of devices with an abort so far, including this one
    std::size_t graphs;   // on all devices
  };
  static std::vector<Abort> aborts() {
    const std::scoped_lock lock(mutex);
    return graphs;
  }

 private:
  inline static const kernels::cuda::NcclApi* real = nullptr;
  inline static std::mutex mutex;
  inline static std::set<int> devices;
  inline static std::vector<Abort> graphs;
};

}  // namespace

TEST_CASE("nccl: graphs that hold a communicator are destroyed before it is aborted, even while they run") {
  const Model model = narrow_convnet();
  for (const bool running : {false, true}) {
    SimulatedGpus machine(2);
    simt::simulation().protect_memory = simt::simulation().delays = false;  // faster
    simt::SimulatedNccl nccl;
    simt::SimulatedNccl::allow_a_graph_for_each_replica();
    const AbortRecorder recorder;
    {
      DataParallel net(model, with_nccl(2, Reduce::sharded));
      const auto step = [&] { net.train_step(random_batch(model, 8), Sgd{.lr = 0.05f, .momentum = 0.9f}); };
      for (int i = 0; i < 3; ++i) step();
      if (!running) net.take_stats();
      CHECK(simt::live().graphs == 2);
      nccl.break_rank(1, kernels::cuda::NcclResult::remote_error);
      const auto train = [&] {
        for (int i = 0; i < 50; ++i) step(), net.take_stats();
      };
      CHECK_THROWS_WITH(train(), Catch::Contains("NCCL on cuda:1 failed asynchronously"));
      // The engine still exists. The last abort may still be in progress.
      const auto begin = std::chrono::steady_clock::now();
      while (recorder.aborts().size() < 4 && in_time(begin, 10)) std::this_thread::yield();
      CHECK(recorder.aborts().size() == 4);  // two communicators
    }
    for (const AbortRecorder::Abort& abort : recorder.aborts()) CHECK(abort.graphs <= 2 - abort.devices);
    CHECK(nccl.handles() == 0);
  }
}

TEST_CASE("nccl: a step as a graph has the bits of the eager step and the same collectives on every device") {
  const Model model = narrow_convnet();
  for (const int gpus : {2, 4})
    for (const Reduce reduce : kReductions) {
      if (gpus == 4 && reduce != Reduce::sharded) continue;  // faster
      SimulatedGpus machine(gpus);
      simt::simulation().protect_memory = simt::simulation().delays = false;  // faster
      const simt::SimulatedNccl nccl;
      simt::SimulatedNccl::allow_a_graph_for_each_replica();
      const DataParallelOptions options = with_nccl(gpus, reduce);
      const Course eager = course_of(model, options, false);
      CHECK(in_graphs(nccl, 0) == 0);
      const Course graphs = course_of(model, options, true);
      CHECK(graphs == eager);
      CHECK_THAT(graphs.steps, Catch::Contains("one graph for each replica") && Catch::Contains(" nodes"));
      CHECK(in_graphs(nccl, 0) > 10);
      for (int device = 1; device < gpus; ++device) CHECK(nccl.launches(device).size() == nccl.launches(0).size());
    }
}

TEST_CASE("nccl: two communicators in one graph make the same collectives on every device") {
  check_two_communicators(residual_net(/*relu=*/true, /*dropout=*/true), 2);
}

// Batches as dealt by the loaders of two ranks: the first rank gets the odd row.
TEST_CASE("nccl: all ranks of a process group run their steps as graphs, or none does") {
  const Model model = narrow_convnet();
  for (const int fail : {0, 9}) {
    SimulatedGpus machine(2);
    simt::simulation().protect_memory = false;  // faster
    const simt::SimulatedNccl nccl;
    const auto train = [&](bool graphs, std::string& steps) {
      std::vector<NamedTensor> weights;
      all_ranks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
        DataParallelOptions options = with_nccl(1, Reduce::all_reduce);
        options.devices = gpus({group->rank()});
        options.process_group = group;
        options.graphs = graphs ? Graphs::automatic : Graphs::never;
        DataParallel net(model, options);
        std::uint64_t number = 0;
        const auto part = [&](std::int64_t global) {
          Batch batch = random_batch(model, (global + 1 - group->rank()) / 2, 2 * ++number + group->rank());
          batch.global = global;
          return batch;
        };
        for (int epoch = 0; epoch < 3; ++epoch) {
          for (int i = 0; i < 3; ++i) net.train_step(part(8), Sgd{.lr = 0.05f, .momentum = 0.9f});
          net.train_step(part(5), Sgd{.lr = 0.02f, .momentum = 0.9f});
          net.evaluate(part(21));
        }
        net.take_stats();
        DP_HOLDS(net.replicas_identical());
        const auto own = net.weights();
        if (group->leads()) weights = own, steps = net.describe_steps();
      });
      return weights;
    };
    std::string eagerly, steps;
    const auto expected = train(false, eagerly);
    for (int device = 0; device < 2; ++device) {  // each rank warms up both communicators before its first step
      const std::vector<std::string> launches = nccl.launches(device);
      CHECK(std::ranges::count_if(launches, [](const std::string& launch) {
              return launch.find("broadcast of 1 float32, root 0 + all_gather of 1 float32") != std::string::npos;
            }) == 2);
    }
    CHECK(in_graphs(nccl, 0) == 0);
    simt::simulation().fail_capture = fail;
    CHECK(bit_equal(train(true, steps), expected));
    CHECK((in_graphs(nccl, 0) > 10) == (fail == 0));
    CHECK_THAT(steps, Catch::Contains(fail == 0 ? " nodes" : "a graph capture failed"));
  }
}

TEST_CASE("nccl: with --graphs always a capture that fails on any rank is an error") {
  const Model model = narrow_convnet();
  SimulatedGpus machine(2);
  const simt::SimulatedNccl nccl;
  simt::SimulatedNccl::allow_a_graph_for_each_replica();
  for (const int k : {1, 7, 20}) {
    simt::simulation().fail_capture = k;
    DataParallel net(model, with_nccl(2, Reduce::all_reduce));
    const auto step = [&] { net.train_step(random_batch(model, 8), Sgd{.lr = 0.05f}); };
    step();
    CHECK_THROWS_WITH(step(), Catch::StartsWith("--graphs always: a graph capture failed: "));
    CHECK(simt::simulation().fail_capture == 0);
  }
  CHECK(in_graphs(nccl, 0) == 0);
}

TEST_CASE("nccl: several GPUs of one process run eagerly unless --graphs always is set") {
  const Model model = narrow_convnet();
  SimulatedGpus machine(2);
  const simt::SimulatedNccl nccl;
  simt::SimulatedNccl::allow_a_graph_for_each_replica();
  DataParallelOptions options = with_nccl(2, Reduce::sharded);
  const auto train = [&] {
    DataParallel net(model, options);
    for (std::uint64_t i = 0; i < 3; ++i) net.train_step(random_batch(model, 8, i), Sgd{.lr = 0.05f});
    return net.graphs_choice();
  };
  options.graphs = Graphs::automatic;
  Choice eager, demanded;
  CHECK(printed_by([&] { eager = train(); }).empty());
  CHECK(eager.what == "none");
  CHECK_THAT(eager.reason, Catch::Contains("NVIDIA warns") && Catch::Contains("Using NCCL with CUDA Graphs") &&
                               Catch::Contains("one GPU per process"));
  CHECK(in_graphs(nccl, 0) == 0);
  options.graphs = Graphs::always;
  CHECK_THAT(printed_by([&] { demanded = train(); }),
             Catch::StartsWith("dp: warning: --graphs always: NVIDIA warns") && Catch::Contains("one GPU per process"));
  CHECK(demanded.what == "one per replica");
  CHECK(in_graphs(nccl, 0) > 0);
}

TEST_CASE("nccl: with mixed precision weights are gathered in 16 bits and training has the bits of float32 gathers") {
  const Model model = two_blocks(24);
  SimulatedGpus machine(2);
  simt::simulation().delays = simt::simulation().protect_memory = false;  // faster
  const simt::SimulatedNccl nccl;
  simt::SimulatedNccl::allow_a_graph_for_each_replica();
  DataParallelOptions options = with_nccl(2, Reduce::sharded);
  options.amp = Amp::bfloat16;
  options.bucket_bytes = 16000;
  const auto gathered = [&](const char* type) {
    const auto launches = nccl.launches(0);
    return std::count_if(launches.begin(), launches.end(), [&](const std::string& launch) {
      return launch.find(": all_gather of ") != std::string::npos && launch.find(type) != std::string::npos &&
             launch.find(" of 1 ") == std::string::npos;  // from communicator creation
    });
  };
  const Course low = course_of(model, options, true);
  const auto in_16_bits = gathered("bfloat16"), in_32_bits = gathered("float32");
  CHECK(in_16_bits > 2 * in_32_bits);  // float32: biases and normalisations, and full downloads
  CHECK(in_32_bits > 0);
  options.ema_decay = 0.9;  // needs all of them in float32
  Course whole = course_of(model, options, true);
  CHECK(gathered("bfloat16") == in_16_bits);
  whole.average.clear();
  CHECK(low == whole);
}
