// NCCL hangs during communicator creation, in one process and with one process per GPU (here: a thread).
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "cuda/comm/nccl_runs.h"
#include "cuda/engine/narrow_nets.h"
#include "process_group/group_ranks.h"
#include "simulated_cuda/nccl/nccl_state.h"
#include "support/held_stall.h"
#include "support/patience.h"

using namespace dp;
using namespace dp::test;
using kernels::cuda::NcclApi;
using kernels::cuda::NcclComm;
using kernels::cuda::NcclId;
using kernels::cuda::NcclResult;
using kernels::cuda::NcclType;

namespace {

enum class Hang { initialisation, first_collectives };

constexpr double kTimeout = 2;

// NCCL with a rank on cuda:1 that hangs, at most until the watchdog has reported it.
class HangingNccl {
 public:
  explicit HangingNccl(Hang hang) {
    where = hang;
    stalled = reported = false;
    real = kernels::cuda::nccl().api;
    static NcclApi api;
    api = *real;
    api.comm_init_rank = [](NcclComm* comm, int ranks, NcclId id, int rank) {
      if (where == Hang::initialisation && rank == 1 && !stalled.exchange(true))
        becomes([] { return reported.load(); });
      const NcclResult result = real->comm_init_rank(comm, ranks, id, rank);
      if (where == Hang::first_collectives && rank == 1 && result == NcclResult::success)
        (*comm)->error = NcclResult::in_progress;  // not an NCCL error, but its collectives never end
      return result;
    };
    kernels::cuda::provide_nccl({&api, "hanging", {}});
  }

 private:
  inline static const NcclApi* real = nullptr;
  inline static Hang where{};
  inline static std::atomic<bool> stalled{false}, reported{false};
  AfterAbort after_abort_{[] { reported = true; }};
};

DataParallelOptions watched(int gpus) {
  DataParallelOptions options = with_nccl(gpus, Reduce::all_reduce);
  options.graphs = Graphs::never;
  options.timeout_seconds = kTimeout;
  return options;
}

const std::string kExpected = " for 2 s: ";

void check_one_process(Hang hang) {
  SimulatedGpus machine(2);
  const simt::SimulatedNccl nccl;
  const HangingNccl hanging(hang);
  try {
    const DataParallel net(narrow_convnet(), watched(2));
    FAIL("nothing was thrown");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::timeout);
    CHECK_THAT(error.what(), Catch::Contains(kExpected));
  }
}

std::vector<RankFailure> failures_of_ranks() {
  return on_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    DataParallelOptions options = watched(1);
    options.devices = gpus({group->rank()});
    options.process_group = group;
    const DataParallel net(narrow_convnet(), options);
  });
}

void check_ranks(Hang hang) {
  SimulatedGpus machine(2);
  const simt::SimulatedNccl nccl;
  const HangingNccl hanging(hang);
  for (const RankFailure& failure : failures_of_ranks()) {
    INFO(failure.text);
    CHECK(failure.failed);
    CHECK(failure.code == ErrorCode::timeout);
    CHECK_THAT(failure.text, Catch::Contains(kExpected));
  }
}

// Rank 1 fails before it connects to rank 0, which waits for it until the watchdog sees that.
void check_lost_peer() {
  SimulatedGpus machine(2);
  const simt::SimulatedNccl nccl;
  const AfterAbort a_minute([] {});
  static const simt::SimulatedNccl* simulated = nullptr;
  static const NcclApi* real = nullptr;
  static NcclApi api;
  simulated = &nccl, real = kernels::cuda::nccl().api, api = *real;
  api.send = [](const void* from, std::size_t count, NcclType type, int peer, NcclComm comm, cudaStream_t stream) {
    if (peer == 1) return real->send(from, count, type, peer, comm, stream);
    becomes([] { return simulated->waiting() == 1; });
    return NcclResult::internal_error;
  };
  kernels::cuda::provide_nccl({&api, "failing", {}});
  for (const RankFailure& failure : failures_of_ranks()) {
    INFO(failure.text);
    CHECK(failure.failed);
  }
}

}  // namespace

TEST_CASE("nccl: a rank that waits for a peer in a call ends when the peer has failed") { check_lost_peer(); }

TEST_CASE("nccl: a hang in the first collectives ends by the timeout, in one process") {
  check_one_process(Hang::first_collectives);
}

TEST_CASE("nccl: a hang in the first collectives ends by the timeout, with one process per GPU") {
  check_ranks(Hang::first_collectives);
}

TEST_CASE("nccl: a hang in the initialisation ends by the timeout, in one process") {
  check_one_process(Hang::initialisation);
}

TEST_CASE("nccl: a hang in the initialisation ends by the timeout, with one process per GPU") {
  check_ranks(Hang::initialisation);
}
