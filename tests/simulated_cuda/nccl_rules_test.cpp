// The simulated NCCL reports programs that would deadlock with the real NCCL.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <thread>

#include "cuda/simulated_gpus.h"
#include "kernels/device/cuda/runtime.h"
#include "simulated_cuda/nccl/nccl_recorder.h"
#include "support/catch.h"

using namespace dp;
using namespace dp::test;
using kernels::cuda::NcclComm;
using kernels::cuda::NcclResult;
using kernels::cuda::NcclType;
using simt::SimulatedNccl;

namespace {

void ok(cudaError_t error) { REQUIRE(error == cudaSuccess); }
void ok(NcclResult result) { REQUIRE(result == NcclResult::success); }

const kernels::cuda::NcclApi& nccl_api() { return *kernels::cuda::nccl().api; }

void make_communicator(NcclComm (&comms)[2]) {
  kernels::cuda::NcclId id{};
  ok(nccl_api().get_unique_id(&id));
  ok(nccl_api().group_start());
  for (int rank = 0; rank < 2; ++rank) {
    ok(cudaSetDevice(rank));
    ok(nccl_api().comm_init_rank(&comms[rank], 2, id, rank));
  }
  ok(nccl_api().group_end());
}

// Counts of floats. Ranks connect separately for three size classes: the largest calls of the first two, and one of the
// third.
constexpr std::size_t kSmall = 64 * 1024 / sizeof(float), kMiddle = 4 * 1024 * 1024 / sizeof(float),
                      kLarge = kMiddle + 1;

// Two ranks in one process. Calls NCCL directly, without the backend.
class TwoRanks {
 public:
  TwoRanks() : api_(nccl_api()) {
    make_communicator(comms);
    for (int rank = 0; rank < 2; ++rank) {
      ok(cudaSetDevice(rank));
      streams[rank] = kernels::cuda::make_stream_handle();
      memory_[rank] = kernels::cuda::device_memory(kLarge * sizeof(float));
      ok(clear(rank));
    }
  }
  ~TwoRanks() {
    for (int rank = 0; rank < 2; ++rank) {
      cudaStreamSynchronize(stream(rank));
      if (comms[rank] != nullptr) api_.comm_destroy(comms[rank]);
    }
  }
  TwoRanks(const TwoRanks&) = delete;
  TwoRanks& operator=(const TwoRanks&) = delete;

  cudaStream_t stream(int rank) const { return streams[rank].get(); }
  NcclResult all_reduce(int rank, std::size_t count = 10) {
    float* const data = static_cast<float*>(memory_[rank].get());
    return api_.all_reduce(data, data, count, NcclType::f32, kernels::cuda::NcclOp::sum, comms[rank], stream(rank));
  }
  NcclResult broadcast(int rank) {
    return api_.broadcast(memory_[rank].get(), memory_[rank].get(), 10, NcclType::f32, 0, comms[rank], stream(rank));
  }
  void all_reduce_both(std::size_t count = 10) {
    ok(api_.group_start());
    for (int rank = 0; rank < 2; ++rank) ok(all_reduce(rank, count));
    ok(api_.group_end());
  }
  void abort(int rank) { ok(api_.comm_abort(std::exchange(comms[rank], nullptr))); }
  void destroy(int rank) { ok(api_.comm_destroy(std::exchange(comms[rank], nullptr))); }
  void finish() {
    for (int rank = 0; rank < 2; ++rank) ok(cudaStreamSynchronize(stream(rank)));
  }

  NcclComm comms[2] = {};
  kernels::cuda::StreamHandle streams[2];

 private:
  cudaError_t clear(int rank) { return cudaMemsetAsync(memory_[rank].get(), 0, kLarge * sizeof(float), stream(rank)); }

  const kernels::cuda::NcclApi& api_;
  kernels::cuda::DeviceMemory memory_[2];
};

kernels::cuda::GraphExecHandle instance_of(cudaStream_t origin) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ok(cudaStreamEndCapture(origin, &graph));
  const kernels::cuda::GraphHandle owned(graph);
  ok(cudaGraphInstantiate(&exec, graph, 0));
  ok(cudaGraphUpload(exec, origin));
  return kernels::cuda::GraphExecHandle(exec);
}

kernels::cuda::GraphExecHandle graph_of_one(TwoRanks& ranks, int rank) {
  ok(cudaStreamBeginCapture(ranks.stream(rank), cudaStreamCaptureModeThreadLocal));
  ok(ranks.all_reduce(rank));
  return instance_of(ranks.stream(rank));
}

kernels::cuda::GraphExecHandle graph_of_both(TwoRanks& ranks) {
  ok(cudaSetDevice(0));
  const auto fork = kernels::cuda::make_event_handle();
  ok(cudaSetDevice(1));
  const auto join = kernels::cuda::make_event_handle();
  ok(cudaStreamBeginCapture(ranks.stream(0), cudaStreamCaptureModeThreadLocal));
  ok(cudaEventRecord(fork.get(), ranks.stream(0)));
  ok(cudaStreamWaitEvent(ranks.stream(1), fork.get(), 0));
  ranks.all_reduce_both();
  ok(cudaEventRecord(join.get(), ranks.stream(1)));
  ok(cudaStreamWaitEvent(ranks.stream(0), join.get(), 0));
  return instance_of(ranks.stream(0));
}

}  // namespace

TEST_CASE("nccl rules: an allocation while a collective waits for another rank is reported") {
  SimulatedGpus machine(2);
  const SimulatedNccl nccl;
  TwoRanks ranks;
  ranks.all_reduce_both();
  { const auto before = kernels::cuda::device_memory(64); }
  CHECK(simt::take_reports().empty());
  ok(ranks.all_reduce(0));
  const auto late = kernels::cuda::device_memory(64);
  ok(ranks.all_reduce(1));
  ranks.finish();
  CHECK(simt::take_reports() ==
        std::vector<std::string>{"cudaMalloc may wait for all_reduce of 10 float32 (communicator 1) on cuda:0, which "
                                 "waits for cuda:1: possible deadlock"});
}

TEST_CASE("nccl rules: making or destroying a communicator while a collective waits is reported, aborting one is not") {
  enum class Call { make, destroy, abort };
  for (const Call call : {Call::make, Call::destroy, Call::abort}) {
    SimulatedGpus machine(2);
    const SimulatedNccl nccl;
    TwoRanks ranks;
    ranks.all_reduce_both();
    NcclComm other[2] = {};
    const auto end_other = [&](auto* end) {
      for (const NcclComm comm : other) ok(end(comm));
    };
    if (call != Call::make) make_communicator(other);
    CHECK(simt::take_reports().empty());
    ok(ranks.all_reduce(0));
    if (call == Call::make) make_communicator(other);
    if (call == Call::destroy) end_other(nccl_api().comm_destroy);
    if (call == Call::abort) end_other(nccl_api().comm_abort);
    ok(ranks.all_reduce(1));
    ranks.finish();
    const std::vector<std::string> reports = simt::take_reports();
    if (call == Call::make) end_other(nccl_api().comm_destroy);
    if (call == Call::abort)
      CHECK(reports.empty());
    else
      CHECK(reports ==
            std::vector<std::string>{std::string(call == Call::make ? "ncclCommInitRank" : "ncclCommDestroy") +
                                     " may wait for all_reduce of 10 float32 (communicator 1) on cuda:0, which "
                                     "waits for cuda:1: possible deadlock"});
  }
}

TEST_CASE(
    "nccl rules: ranks connect at the first use of each call size, or for all sizes when communicators are made") {
  for (const bool at_init : {false, true}) {
    SimulatedGpus machine(2);
    const SimulatedNccl nccl;
    setenv("NCCL_RUNTIME_CONNECT", at_init ? "0" : "1", 1);
    TwoRanks ranks;
    const std::pair<std::size_t, int> calls[] = {{1, 1},       {kSmall, 1}, {kSmall + 1, 2},
                                                 {kMiddle, 2}, {kLarge, 3}, {1, 3}};
    for (const auto& [count, classes] : calls) {
      INFO(count);
      ranks.all_reduce_both(count);
      CHECK(nccl.late_connections() == (at_init ? 0 : 2 * classes));  // both ranks connect
    }
    ranks.finish();
    unsetenv("NCCL_RUNTIME_CONNECT");
  }
}

TEST_CASE("nccl rules: a connection that a first call makes while a collective waits is reported") {
  for (const bool at_init : {false, true})
    for (const bool larger : {false, true}) {
      SimulatedGpus machine(2);
      const SimulatedNccl nccl;
      setenv("NCCL_RUNTIME_CONNECT", at_init ? "0" : "1", 1);
      {
        TwoRanks ranks;
        const auto first_call = [&](int rank) {
          return larger ? ranks.all_reduce(rank, kSmall + 1) : ranks.broadcast(rank);
        };
        ranks.all_reduce_both();
        CHECK(nccl.late_connections() == (at_init ? 0 : 2));
        ok(ranks.all_reduce(0));
        NcclResult first{};
        std::thread other([&] { first = first_call(0); });
        while (!at_init && nccl.late_connections() < 3) std::this_thread::yield();
        ok(ranks.all_reduce(1));
        ok(first_call(1));
        other.join();
        ok(first);
        ranks.finish();
        CHECK(nccl.late_connections() == (at_init ? 0 : 4));
      }
      unsetenv("NCCL_RUNTIME_CONNECT");
      const std::vector<std::string> reports = simt::take_reports();
      CHECK(reports.size() == (at_init ? 0 : 1));
      if (!reports.empty())
        CHECK_THAT(reports.front(),
                   Catch::Contains(std::string("NCCL connecting communicator 1 for ") +
                                   (larger ? "all_reduce of up to 4 MiB" : "broadcast of up to 64 KiB") +
                                   " may wait for all_reduce of 10 float32"));
    }
}

TEST_CASE("nccl rules: a graph with the calls of one of several GPUs of a process is reported unless allowed") {
  for (const bool allowed : {false, true}) {
    SimulatedGpus machine(2);
    const SimulatedNccl nccl;
    if (allowed) simt::SimulatedNccl::allow_a_graph_for_each_replica();
    TwoRanks ranks;
    ranks.all_reduce_both();
    const auto first = graph_of_one(ranks, 0), second = graph_of_one(ranks, 1);
    ok(cudaGraphLaunch(first.get(), ranks.stream(0)));
    ok(cudaGraphLaunch(second.get(), ranks.stream(1)));
    ranks.finish();
    const std::vector<std::string> reports = simt::take_reports();
    CHECK(reports.size() == (allowed ? 0 : 2));
    for (const std::string& report : reports) CHECK_THAT(report, Catch::Contains("Using NCCL with CUDA Graphs"));
  }
  SimulatedGpus machine(2);
  const SimulatedNccl nccl;
  TwoRanks ranks;
  ranks.all_reduce_both();
  ranks.finish();  // the graph is launched on one of the two streams only
  const auto both = graph_of_both(ranks);
  for (int i = 0; i < 3; ++i) ok(cudaGraphLaunch(both.get(), ranks.stream(0)));
  ranks.finish();
  CHECK(simt::take_reports().empty());
}

TEST_CASE("nccl rules: aborting or destroying a communicator waits for the graphs that hold it") {
  for (const bool aborts : {false, true})
    for (const bool stays : {false, true}) {
      SimulatedGpus machine(2);
      const SimulatedNccl nccl;
      simt::SimulatedNccl::allow_a_graph_for_each_replica();
      {
        TwoRanks ranks;
        ranks.all_reduce_both();
        ranks.finish();
        auto graph = graph_of_one(ranks, 0);
        if (stays)
          SimulatedNccl::lose_patience();
        else
          graph = {};
        aborts ? ranks.abort(0) : ranks.destroy(0);
        graph = {};
      }
      const std::vector<std::string> reports = simt::take_reports();
      CHECK(reports.size() == (stays ? 1 : 0));
      if (!reports.empty())
        CHECK_THAT(reports.front(), Catch::Contains(std::string(aborts ? "ncclCommAbort" : "ncclCommDestroy") +
                                                    " of rank 0 of communicator 1 waits for ever for graphs"));
    }
}
