// After the first collective of a run no call may wait for a device or for a lock of the driver: no allocation, no copy
// of pageable memory, no creation of events or streams, no kernel loading.
#include <cstdlib>
#include <thread>

#include "cuda/comm/blocking_cases.h"
#include "cuda/engine/narrow_nets.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/device/cuda/stream.h"
#include "kernels/device/plugin.h"
#include "simulated_cuda/calls.h"
#include "simulated_cuda/sleep.h"
#include "support/device_images.h"

using namespace dp;
using namespace dp::kernels;
using namespace dp::test;
using simt::SimulatedNccl;

TEST_CASE("blocking calls: none in a step with p2p and nccl, every reduction, with graphs and without") {
  const Model model = narrow_convnet();
  for (const Comm comm : {Comm::p2p, Comm::nccl})
    for (const Reduce reduce : kReductions)
      for (const bool prepared : {false, true}) {
        SimulatedGpus machine(2);
        simt::simulation().delays = simt::simulation().protect_memory = false;  // faster
        const SimulatedNccl nccl;
        check_case(model, kCases[0], comm, reduce, prepared);
      }
}

TEST_CASE("blocking calls: none in a step with any other option") {
  const Model model = residual_net(/*relu=*/true, /*dropout=*/true);
  int turn = 0;  // alternates p2p and nccl, and announced and unannounced sizes
  for (const Case& one : kCases) {
    check_case_on_two(model, one, turn / 2 % 2 == 0 ? Comm::p2p : Comm::nccl, turn % 2 == 1);
    ++turn;
  }
}

TEST_CASE("blocking calls: none between GPUs without peer access, nor with several shards on a GPU") {
  const Model model = residual_net();
  SimulatedGpus machine(2, simt::Peer::none);
  simt::simulation().delays = simt::simulation().protect_memory = false;  // faster
  constexpr Case kShards{"logical shards", [](DataParallelOptions& o) { o.logical_shards = 4; }};
  for (const Reduce reduce : kReductions) check_case(model, kCases[0], Comm::p2p, reduce, reduce == Reduce::master);
  check_case(model, kShards, Comm::p2p, Reduce::master, false);
}

TEST_CASE("blocking calls: none in the seven steps of the wrapper") {
  const Model model = residual_net();
  for (const Comm comm : {Comm::p2p, Comm::nccl}) {
    SimulatedGpus machine(2);
    const SimulatedNccl nccl;
    DataParallelOptions options = on_gpus(2, 2);
    options.comm = comm;
    DataParallel net(model, options);
    const Batch batch = random_batch(model, 8);
    Tensor grad(model.output().prepended(8));
    for (float& value : grad.span<float>()) value = 0.01f;
    const Logged log;
    for (int step = 0; step < 2; ++step) {
      net.forward(batch.images);
      net.backward(grad);
      CHECK(log.calls() == std::vector<std::string>{});
      net.step(kMomentum);  // allocates the momenta before any reduction
      CHECK(log.calls() == std::vector<std::string>{});
    }
  }
}

TEST_CASE("blocking calls: none with a device-resident data set, checked replicas or skipped steps") {
  constexpr Case kMore[] = {
      {"alone", [](DataParallelOptions&) {}},
      {"non-finite gradients skipped", [](DataParallelOptions& o) { o.on_nonfinite = OnNonfinite::skip; }},
      {"replicas checked", [](DataParallelOptions& o) { o.check_replicas = true; }},
  };
  const Model model = narrow_convnet();
  const auto set = read_images(RandomImages(model.input(), model.output()[0], 20));
  const auto batch_of = [&](std::int64_t rows, std::uint64_t seed) {
    Batch batch = random_batch(model, rows, seed);
    batch.images = {};
    for (std::int64_t& sample : batch.samples.span<std::int64_t>()) sample %= 20;
    batch.resident = {.set = set, .augment = true, .seed = 7, .epoch = seed};
    return batch;
  };
  for (const Case& one : kMore)
    for (const bool graphs : {false, true}) {
      INFO(one.name << (graphs ? ", graphs" : ""));
      SimulatedGpus machine(2);
      simt::simulation().delays = simt::simulation().protect_memory = false;  // faster
      DataParallelOptions options = on_gpus(2, 2);
      options.graphs = graphs ? Graphs::always : Graphs::never;
      one.change(options);
      DataParallel net(model, options);
      net.prepare({8, 5}, {7}, {.set = set, .augment = true}, {.set = set});
      const Logged log;
      for (const std::int64_t rows : {8, 5})
        for (std::uint64_t step = 0; step < 3; ++step) net.train_step(batch_of(rows, step), kMomentum);
      net.evaluate(batch_of(7, 0));
      net.take_stats();
      CHECK(log.calls() == std::vector<std::string>{});
    }
}

// The exports themselves allocate, but only after all ranks have finished their calls.
TEST_CASE("blocking calls: none in steps between exports of weights") {
  const Model model = narrow_convnet();
  for (const Reduce reduce : {Reduce::master, Reduce::sharded})
    for (const bool graphs : {false, true}) {
      SimulatedGpus machine(2);
      simt::simulation().delays = simt::simulation().protect_memory = false;  // faster
      DataParallelOptions options = on_gpus(2, 2);
      options.reduce = reduce;
      options.graphs = graphs ? Graphs::always : Graphs::never;
      options.ema_decay = 0.9;
      DataParallel net(model, options);
      for (std::uint64_t step = 0; step < 4; ++step) {
        {
          const Logged log;
          net.train_step(random_batch(model, 8, step), kMomentum);
          net.take_stats();
          CHECK(log.calls() == std::vector<std::string>{});
        }
        CHECK(!net.weights().empty());
        CHECK(!net.optimizer_state().tensors.empty());
        CHECK(!net.average_weights().empty());
      }
    }
}

TEST_CASE("blocking calls: the log has the allocations of a batch size that was not announced") {
  SimulatedGpus machine(2);
  const Model model = narrow_convnet();
  DataParallel net(model, on_gpus(2, 2));
  net.train_step(random_batch(model, 8), Sgd{.lr = 0.01f});
  const Logged log;
  net.evaluate(random_batch(model, 16));  // a size that was not announced; no communication
  CHECK(log.calls() == std::vector<std::string>{});
  net.train_step(random_batch(model, 8), Sgd{.lr = 0.01f});
  net.evaluate(random_batch(model, 32));
  const std::vector<std::string> calls = log.calls();
  for (const char* const name : {"cudaMalloc on cuda:0", "cudaMalloc on cuda:1", "cudaHostAlloc on cuda:1"}) {
    INFO(name);
    CHECK(std::count(calls.begin(), calls.end(), name) > 0);
  }
}

TEST_CASE("nccl: ranks connect when communicators are made, unless NCCL_RUNTIME_CONNECT is set") {
  const Model model = narrow_convnet();
  for (const char* const given : {static_cast<const char*>(nullptr), "1"}) {
    SimulatedGpus machine(2);
    const SimulatedNccl nccl;
    DataParallelOptions options = on_gpus(2, 2);
    options.comm = Comm::nccl;
    if (given != nullptr) setenv("NCCL_RUNTIME_CONNECT", given, 1);
    const DataParallel net(model, options);
    const char* const set = std::getenv("NCCL_RUNTIME_CONNECT");
    REQUIRE(set != nullptr);
    CHECK(std::string(set) == (given != nullptr ? given : "0"));
    // NCCL reads the variable before its first communicator. Sends and receives connect at their first use in any case:
    // in the warm-up, on 2 ranks of 2 communicators.
    constexpr int kSendsAndReceives = 8;
    CHECK((nccl.late_connections() == kSendsAndReceives) == (given == nullptr));
    // The first launches are a warm-up of every kind of collective on both communicators.
    for (int device = 0; device < 2; ++device) {
      int warmed_up = 0;
      for (const std::string& launch : nccl.launches(device)) {
        if (launch.find("broadcast of 1 float32, root 0 + all_gather of 1 float32 + reduce of 1 float32, root 0 + "
                        "all_reduce of 1 float32 + reduce_scatter of 1 float32") == std::string::npos)
          continue;
        ++warmed_up;
        for (const char* const type : {"float64", "bfloat16"})
          CHECK_THAT(launch, Catch::Contains(std::string("all_reduce of 1 ") + type));
      }
      CHECK(warmed_up == 2);
    }
    unsetenv("NCCL_RUNTIME_CONNECT");
  }
}

TEST_CASE("simulated GPUs: communication streams have the highest priority, all others the lowest") {
  SimulatedGpus machine(2);
  {
    const auto context = backend(DeviceKind::cuda).open({DeviceKind::cuda, 1}, {});
    const auto work = context->make_stream(), communication = context->make_stream(StreamUse::communication);
    const auto [lowest, highest] = simt::stream_priorities();
    CHECK(highest < lowest);
    CHECK(simt::priority_of(cuda::of_cuda(*work).native()) == lowest);
    CHECK(simt::priority_of(cuda::of_cuda(*communication).native()) == highest);
  }
  const DataParallel net(narrow_convnet(), on_gpus(2, 2));
  CHECK(simt::live().urgent_streams == 2);  // one per replica
}

TEST_CASE("simulated GPUs: downloads of any size are complete") {
  SimulatedGpus machine(2);
  const auto context = backend(DeviceKind::cuda).open({DeviceKind::cuda, 1}, {});
  const auto stream = context->make_stream();
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{1} << 20, (std::size_t{3} << 20) + 5}) {
    std::vector<unsigned char> there(bytes), back(bytes);
    for (std::size_t i = 0; i < bytes; ++i) there[i] = static_cast<unsigned char>(i * 31 + i / 251);
    const auto memory = context->allocate(bytes);
    stream->copy(memory->data(), there.data(), bytes);
    stream->download(back.data(), memory->data(), bytes);
    CHECK(back == there);
  }
}

// Like a broken GPU: its work never ends, and neither does dependent work on other GPUs.
TEST_CASE("simulated GPUs: the abort flag ends a wait for a GPU that never answers, and its handles are abandoned") {
  SimulatedGpus machine(2);
  const ImpatientAborts aborts;
  AbortFlag abort{false};
  std::atomic<bool> answers{false};
  {
    ContextOptions options;
    options.abort = &abort;
    Backend& cuda = backend(DeviceKind::cuda);
    const auto broken = cuda.open({DeviceKind::cuda, 1}, options), sound = cuda.open({DeviceKind::cuda, 0}, options);
    const auto stuck = broken->make_stream(), waiting = sound->make_stream();
    const auto event = broken->make_event(), behind = sound->make_event();
    std::vector<std::unique_ptr<Stream>> others;
    for (int i = 0; i < 10; ++i) others.push_back(sound->make_stream());
    broken->bind_thread();
    simt::hold(cuda::of_cuda(*stuck).native(), answers);
    stuck->record(*event);
    waiting->wait(*event);
    for (const auto& stream : others) stream->wait(*event);
    waiting->record(*behind);
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      abort = true;
    });
    CHECK_THROWS_AS(waiting->synchronize(), Aborted);
    CHECK_THROWS_AS(waiting->synchronize(*behind), Aborted);
    other.join();
    CHECK(!cuda::handles_abandoned);
  }
  CHECK(cuda::handles_abandoned);
  CHECK(ImpatientAborts::looks() < 25);  // one wait for all streams
  CHECK(simt::live().streams > 0);
  answers = true;
  answers.notify_all();
}
