// The communicator nccl over a simulated NCCL that checks the launches of every rank.
#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "cuda/comm/collectives.h"
#include "cuda/engine/narrow_nets.h"
#include "cuda/simulated_gpus.h"
#include "dp/error.h"
#include "simulated_cuda/nccl/nccl_recorder.h"

using namespace dp;
using namespace dp::kernels;
using namespace dp::test;
using simt::SimulatedNccl;

namespace {

void check_one_order(const SimulatedNccl& nccl, int devices) {
  const std::vector<std::string> expected = nccl.launches(0);
  CHECK(!expected.empty());
  for (int device = 1; device < devices; ++device) CHECK(nccl.launches(device) == expected);
}

DataParallelOptions over_nccl(int gpus, Reduce reduce = Reduce::automatic) {
  DataParallelOptions options = on_gpus(gpus, gpus);
  options.comm = Comm::nccl;
  options.reduce = reduce;
  return options;
}

// The largest difference of an element, relative to the largest element of its tensor.
double distance(const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b) {
  if (!same_names(a, b)) return kInfinitelyFar;
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].second.shape() != b[i].second.shape()) return kInfinitelyFar;
    double largest = 0, difference = 0;
    for (std::int64_t at = 0; at < a[i].second.numel(); ++at) {
      largest = larger_error(largest, std::abs(value_at(b[i].second, at)));
      difference = larger_error(difference, std::abs(value_at(a[i].second, at) - value_at(b[i].second, at)));
    }
    worst = larger_error(worst, largest > 0 ? difference / largest : difference);
  }
  return worst;
}

// The process group of simulated processes: every rank sees what each rank contributes.
class SharedTable {
 public:
  explicit SharedTable(int size) : given_(static_cast<std::size_t>(size)) {}
  std::vector<std::string> exchange(int rank, std::string_view mine) {
    std::unique_lock lock(mutex_);
    given_[static_cast<std::size_t>(rank)] = mine;
    const int round = rounds_;
    if (++present_ == static_cast<int>(given_.size())) {
      present_ = 0, ++rounds_;
      seen_ = given_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return rounds_ > round; });
    return seen_;
  }
  int size() const { return static_cast<int>(given_.size()); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> given_, seen_;
  int present_ = 0, rounds_ = 0;
};

class TableRendezvous final : public Rendezvous {
 public:
  TableRendezvous(SharedTable& table, int rank) : table_(table), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return table_.size(); }
  int local_rank() const override { return rank_; }
  int local_size() const override { return size(); }
  bool one_host() const override { return true; }
  double timeout_seconds() const override { return 10; }
  std::vector<std::string> exchange(std::string_view mine) override { return table_.exchange(rank_, mine); }

 private:
  SharedTable& table_;
  int rank_;
};

// Runs body(rank, context, process group) on a thread per device. Returns the texts of the exceptions.
template <typename Body>
std::vector<std::string> on_processes(const std::vector<int>& devices, const Body& body) {
  SharedTable table(static_cast<int>(devices.size()));
  std::vector<std::string> failures(devices.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < devices.size(); ++rank)
    threads.emplace_back([&, rank] {
      try {
        TableRendezvous rendezvous(table, static_cast<int>(rank));
        const auto context = backend(DeviceKind::cuda).open({DeviceKind::cuda, devices[rank]}, {});
        body(static_cast<int>(rank), *context, rendezvous);
      } catch (const std::exception& error) {
        failures[rank] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return failures;
}

}  // namespace

TEST_CASE("nccl: every collective works on 1 to 8 GPUs, with even and uneven slices and several summands") {
  for (const int size : {1, 2, 3, 4, 8}) {
    SimulatedGpus machine(size);
    const SimulatedNccl nccl;
    {
      Ranks ranks(first_gpus(size), "nccl");
      CHECK(ranks.name() == "nccl");
      for (const std::int64_t count : {std::int64_t{1}, std::int64_t{5000}, kNormBlock * size, 3 * kNormBlock + 7})
        for (const int shards : {1, 2}) {
          check_all<float>(ranks, count, shards, whole_numbers<float>);
          check_all<BFloat16>(ranks, count, shards, whole_numbers<BFloat16>);
        }
      check_all<double>(ranks, 3001, 1, whole_numbers<double>);
      for (int root = 0; root < size; ++root) check_parts(ranks, root);
      check_one_order(nccl, size);
    }
    CHECK(nccl.handles() == 0);
  }
}

TEST_CASE("nccl: even slices use one collective, uneven slices several at once") {
  SimulatedGpus machine(2);
  const SimulatedNccl nccl;
  Ranks ranks({0, 1}, "nccl");
  ranks.run([&](int, Context& context, Communicator& comm) {
    const auto stream = context.make_stream();
    OnDevice<float> data(context, *stream, std::vector<float>(4 * kNormBlock));
    ranks.synchronise();  // allocations may wait for devices
    for (const std::int64_t count : {4 * kNormBlock, kNormBlock + 5}) {
      comm.reduce_scatter(data.data(), count, DType::f32, *stream);
      comm.all_gather(data.data(), count, DType::f32, *stream);
    }
    stream->synchronize();
  });
  const std::string half = std::to_string(2 * kNormBlock), block = std::to_string(kNormBlock);
  std::vector<std::string> launches = nccl.launches(1);
  CHECK_THAT(launches.at(0), Catch::Contains("broadcast of 1 ") && Catch::Contains("all_reduce of 1 "));  // warm-up
  launches.erase(launches.begin());
  CHECK(launches == std::vector<std::string>{
                        "communicator 1: reduce_scatter of " + half + " float32",
                        "communicator 1: all_gather of " + half + " float32",
                        "communicator 1: reduce of " + block + " float32, root 0 + reduce of 5 float32, root 1",
                        "communicator 1: broadcast of " + block + " float32, root 0 + broadcast of 5 float32, root 1"});
}

TEST_CASE("nccl: sharded training uses NCCL's own reduce-scatter and all-gather for every network") {
  for (const Model& model : {narrow_convnet(), narrow_resnet(/*relu=*/true)})
    for (const int gpus : {2, 4, 8}) {
      SimulatedGpus machine(gpus);
      simt::simulation().protect_memory = simt::simulation().delays = false;  // faster
      const SimulatedNccl nccl;
      DataParallelOptions options = over_nccl(gpus, Reduce::sharded);
      options.bucket_bytes = 4000;
      DataParallel net(model, options);
      for (std::uint64_t i = 0; i < 2; ++i)
        net.train_step(random_batch(model, 2 * gpus + 1, i), Sgd{.lr = 0.05f, .momentum = 0.9f});
      net.take_stats();
      CHECK(net.replicas_identical());
      int own = 0, grouped = 0;
      for (const std::string& launch : nccl.launches(0)) {
        if (launch.find(" of 1 ") != std::string::npos) continue;  // from communicator creation
        own += launch.find(": reduce_scatter of") != std::string::npos ||
               launch.find(": all_gather of") != std::string::npos;
        grouped += launch.find(" + ") != std::string::npos || launch.find(": reduce of") != std::string::npos;
      }
      INFO(model.name() << " on " << gpus << " GPUs");
      CHECK(own >= 4);
      CHECK(grouped == 0);
    }
}

TEST_CASE("nccl: LAMB and Muon give p2p's weights, though buckets and shares end inside tensors") {
  // Buckets and shares end at multiples of 2,048 and 1,024 elements; the first matrix has 2,160.
  const Model model = models::mlp({.input = {1, 6, 6}, .hidden = {60}, .classes = 7});
  SimulatedGpus machine(2);
  simt::simulation().protect_memory = simt::simulation().delays = false;  // faster
  const SimulatedNccl nccl;
  for (const Optimizer& optimizer : {Optimizer(Lamb{.lr = 0.01f}), Optimizer(Muon{.lr = 0.01f})}) {
    const auto trained = [&](Comm comm) {
      DataParallelOptions options = over_nccl(2, Reduce::sharded);
      options.comm = comm;
      options.bucket_bytes = 4000;
      DataParallel net(model, options);
      for (std::uint64_t i = 0; i < 2; ++i) net.train_step(random_batch(model, 6, i), optimizer);
      CHECK(net.replicas_identical());
      return net.weights();
    };
    INFO(name_of(optimizer));
    // Adam's first updates are signs: a gradient near zero that is rounded otherwise is another update.
    CHECK(distance(trained(Comm::nccl), trained(Comm::p2p)) < 1e-3);
  }
}

TEST_CASE("nccl: training gives p2p's weights up to rounding, with one launch order on every device") {
  const Model model = narrow_convnet(), deep = residual_net(/*relu=*/true, /*dropout=*/true);
  for (const int gpus : {2, 3})
    for (const Reduce reduce : kReductions) {
      if (gpus == 3 && reduce != Reduce::sharded) continue;  // faster
      SimulatedGpus machine(gpus);
      simt::simulation().protect_memory = false;  // faster
      DataParallelOptions reference = on_gpus(gpus, gpus);
      reference.reduce = reduce;
      reference.comm = Comm::p2p;
      const auto expected = five_steps(model, reference, 9);
      const SimulatedNccl nccl;
      DataParallelOptions options = over_nccl(gpus, reduce);
      INFO(gpus << " GPUs, reduce " << static_cast<int>(reduce));
      CHECK(distance(five_steps(model, options, 9), expected) < 1e-5);
      options.clip_grad_norm = 0.5;
      options.bucket_bytes = 4000;
      options.loss = LossAt::gathered;
      five_steps(model, options, 9);
      options = over_nccl(gpus, reduce);
      options.batch_norm = BatchNormMode::sync;  // two communicators at once on each device
      options.bucket_bytes = 4000;
      five_steps(deep, options, 9);
      five_steps(deep, options, gpus - 1);  // one GPU has no rows
      check_one_order(nccl, gpus);
      CHECK(nccl.communicators() == 8);
      CHECK(nccl.handles() == 0);
    }
}

TEST_CASE("nccl: auto selects p2p if every pair of GPUs is direct") {
  SimulatedGpus machine(2);
  const SimulatedNccl nccl;
  for (const int replicas : {1, 2, 4}) {
    const DataParallel net(narrow_convnet(), on_gpus(replicas, 2));
    CHECK(net.options().comm == Comm::p2p);
    CHECK(net.communicator() == "p2p");
    CHECK(net.communicator_choice().what == "p2p");
    CHECK(net.communicator_choice().reason ==
          (replicas == 1 ? "one replica needs no communication" : "every pair of GPUs has verified direct access"));
    CHECK(net.graphs_choice().what == (replicas == 1 ? "one per replica" : "one of all replicas"));
  }
  CHECK(nccl.communicators() == 0);
}

TEST_CASE("nccl: auto selects nccl with eager steps for distinct GPUs without a direct path, else p2p") {
  const Model model = narrow_convnet();
  SimulatedGpus machine(2, simt::Peer::none);
  const std::string detour = "cuda:0 and cuda:1 through the host (no peer access)";
  {
    const SimulatedNccl nccl;
    const DataParallel two(model, on_gpus(2, 2));
    CHECK(two.options().comm == Comm::nccl);
    CHECK(two.options().reduce == Reduce::sharded);
    CHECK(two.communicator() == "nccl");
    CHECK(two.communicator_choice().reason == "p2p would copy between " + detour);
    CHECK(two.graphs_choice().what == "none");
    const DataParallel shared(model, on_gpus(4, 2));
    CHECK(shared.options().comm == Comm::p2p);
    CHECK(shared.communicator() == "p2p; " + detour);
    CHECK(shared.communicator_choice().reason == "nccl cannot be used: replicas 0 and 2 share cuda:0");
    DataParallelOptions shards = on_gpus(2, 2);
    shards.logical_shards = 4;
    CHECK(DataParallel(model, shards).options().comm == Comm::p2p);
    shards.comm = Comm::nccl;
    CHECK_THROWS_WITH(DataParallel(model, shards), Catch::Contains("--logical-shards") && Catch::Contains("nccl"));
    DataParallelOptions twice = on_gpus(2, 1);
    twice.comm = Comm::nccl;
    try {
      DataParallel(model, twice);
      FAIL("one GPU twice");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::usage);
      CHECK_THAT(error.what(), Catch::Contains("nccl cannot be used: replicas 0 and 1 share cuda:0"));
    }
  }
  const DataParallel without(model, on_gpus(2, 2));
  CHECK(without.communicator() == "p2p; " + detour);
  CHECK(without.communicator_choice().reason == "nccl cannot be used: it is not simulated here");
  CHECK_THROWS_WITH(DataParallel(model, over_nccl(2)),
                    Catch::Contains("nccl cannot be used: it is not simulated here"));
}

TEST_CASE("nccl: ranks that make different calls are detected") {
  SimulatedGpus machine(2);
  {
    const SimulatedNccl nccl;
    Ranks ranks({0, 1}, "nccl");
    ranks.run([&](int rank, Context& context, Communicator& comm) {
      const auto stream = context.make_stream();
      OnDevice<float> data(context, *stream, std::vector<float>(100));
      comm.reserve(100 * sizeof(float));
      ranks.synchronise();  // allocations may wait for devices
      comm.all_reduce(data.data(), 100, DType::f32, *stream);
      comm.all_reduce(data.data(), rank == 0 ? 20 : 21, DType::f32, *stream);
      comm.broadcast(data.data(), 10, DType::f32, rank, *stream);
      stream->synchronize();
    });
  }
  const std::vector<std::string> reports = simt::take_reports();
  REQUIRE(reports.size() == 2);
  CHECK_THAT(reports[0], Catch::Contains("call 2 of communicator 1") && Catch::Contains("all_reduce of 20 float32") &&
                             Catch::Contains("all_reduce of 21 float32"));
  CHECK_THAT(reports[1],
             Catch::Contains("call 3 of communicator 1") && Catch::Contains("root 0") && Catch::Contains("root 1"));
}

// CollectiveOrder guarantees that every rank calls all communicators in the same order.
TEST_CASE("nccl: communicators used in different orders on two devices are detected as a deadlock") {
  SimulatedGpus machine(2);
  {
    const SimulatedNccl nccl(std::chrono::milliseconds(300));
    Ranks ranks({0, 1}, "nccl");
    std::vector<Context*> contexts{&ranks.context(0), &ranks.context(1)};
    const auto second = backend(DeviceKind::cuda).make_communicators("nccl", contexts);
    ranks.run([&](int rank, Context& context, Communicator& comm) {
      const auto stream = context.make_stream(), other = context.make_stream();
      OnDevice<float> data(context, *stream, std::vector<float>(10)), more(context, *other, std::vector<float>(10));
      ranks.synchronise();  // allocations, and the frees below, may wait for devices
      for (const int turn : {rank, 1 - rank})
        if (turn == 0)
          comm.all_reduce(data.data(), 10, DType::f32, *stream);
        else
          second[static_cast<std::size_t>(rank)]->all_reduce(more.data(), 10, DType::f32, *other);
      stream->synchronize();
      other->synchronize();
      ranks.synchronise();
    });
    CHECK(nccl.launches(0) != nccl.launches(1));
  }
  const std::vector<std::string> reports = simt::take_reports();
  CHECK(!reports.empty());
  for (const std::string& report : reports)
    CHECK_THAT(report, Catch::Contains("waits for ever for its device") ||
                           Catch::Contains("waits for ever for the other ranks"));
}

TEST_CASE("nccl: a failed replica releases the replicas that wait for it") {
  const Model model = small_convnet();
  for (const char* phase : {"forward", "backward", "reduce", "update", "broadcast"}) {
    SimulatedGpus machine(3);
    const SimulatedNccl nccl;
    setenv("DP_FAIL", (std::string("throw:") + phase + ":dev1:step1").c_str(), 1);
    const auto train = [&] {
      DataParallel net(model, over_nccl(3));
      for (int step = 0; step < 3; ++step) net.train_step(random_batch(model, 9), Sgd{.lr = 0.01f, .momentum = 0.9f});
      net.take_stats();
    };
    CHECK_THROWS_WITH(train(), Catch::Contains("replica 1 (cuda:1) failed in " + std::string(phase) + " of step 1"));
    unsetenv("DP_FAIL");
    CHECK(nccl.handles() == 0);
    CHECK(simt::live().streams == 0);
    CHECK(simt::live().events == 0);
    CHECK(simt::live().allocations == 0);
  }
}

TEST_CASE("nccl: an asynchronous error ends the run with NCCL's text") {
  SimulatedGpus machine(2);
  SimulatedNccl nccl;
  const Model model = small_convnet();
  const auto train = [&] {
    DataParallel net(model, over_nccl(2));
    net.train_step(random_batch(model, 6), Sgd{.lr = 0.01f});
    nccl.break_rank(1, kernels::cuda::NcclResult::remote_error);
    for (int step = 0; step < 3; ++step) net.train_step(random_batch(model, 6), Sgd{.lr = 0.01f});
    net.take_stats();
  };
  try {
    train();
    FAIL("nothing was thrown");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::device);
    CHECK_THAT(error.what(), Catch::Contains("NCCL on cuda:1 failed asynchronously: remote process exited") &&
                                 Catch::Contains("planted"));
  }
}

TEST_CASE("nccl: ranks of several processes join through their process group") {
  SimulatedGpus machine(3);
  const SimulatedNccl nccl;
  const std::vector<std::string> failures =
      on_processes({2, 0, 1}, [](int rank, Context& context, Rendezvous& rendezvous) {
        const auto comm = backend(DeviceKind::cuda).join("nccl", context, rendezvous);
        if (comm->rank() != rank || comm->size() != 3) throw std::runtime_error("wrong rank");
        const auto stream = context.make_stream();
        OnDevice<float> data(context, *stream, {1.0f + static_cast<float>(rank), 10});
        comm->all_reduce(data.data(), 2, DType::f32, *stream);
        if (data.content() != std::vector<float>{6, 30}) throw std::runtime_error("wrong sum");
      });
  CHECK(failures == std::vector<std::string>(3));
  SharedTable table(1);
  CHECK(backend(DeviceKind::cuda).default_communicator(TableRendezvous(table, 0)).name == "nccl");
}

TEST_CASE("nccl: every rank reports a rank without NCCL or with the GPU of another") {
  SimulatedGpus machine(2);
  const auto join = [](int, Context& context, Rendezvous& rendezvous) {
    backend(DeviceKind::cuda).join("nccl", context, rendezvous);
  };
  {
    const SimulatedNccl nccl;
    for (const std::string& failure : on_processes({1, 1}, join))
      CHECK_THAT(failure, Catch::Contains("ranks 0 and 1 both use the GPU at"));
  }
  for (const std::string& failure : on_processes({0, 1}, join))
    CHECK_THAT(failure, Catch::Contains("rank 0: nccl cannot be used: it is not simulated here"));
  for (const std::string& failure : on_processes({0}, [](int, Context&context, Rendezvous&rendezvous) {
         backend(DeviceKind::cuda).join("p2p", context, rendezvous);
       }))
    CHECK_THAT(failure, Catch::Contains("require communicator nccl, not 'p2p'"));
}
