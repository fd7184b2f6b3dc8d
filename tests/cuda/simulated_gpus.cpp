#include "cuda/simulated_gpus.h"

#include <atomic>
#include <chrono>
#include <cstdlib>

#include "kernels/comm/nccl/nccl_api.h"
#include "kernels/comm/p2p/peers.h"
#include "kernels/device/cuda/cuda_backend.h"
#include "kernels/device/cuda/libraries/libraries.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/device/cuda/stream.h"
#include "kernels/device/plugin.h"
#include "support/catch.h"
#include "support/patience.h"
#include "support/tested_kinds.h"

namespace dp::test {
namespace {

[[maybe_unused]] const bool provided = [] {
  kernels::provide_cuda_backend(kernels::cuda::cuda_backend());
  kernels::cuda::provide_nccl({nullptr, {}, "it is not simulated here"});
  kernels::cuda::provide_cudnn({nullptr, {}, "it is not simulated here"});
  kernels::cuda::provide_cublaslt({nullptr, {}, "it is not simulated here"});
  tested_kinds() = {DeviceKind::cuda};
  return true;
}();

using AbortTime = std::chrono::steady_clock::time_point;
AbortTime standing() { return {}; }

std::atomic<int> looks_after_abort{0};
AbortTime hasty() { return AbortTime(std::chrono::seconds(++looks_after_abort)); }

}  // namespace

SimulatedGpus::SimulatedGpus(int count, simt::Peer peers) {
  simt::reset();
  kernels::cuda::forget_enabled_peers();
  kernels::cuda::handles_abandoned = false;
  kernels::cuda::abort_clock = &standing;
  simt::simulation().devices = count;
  simt::simulation().set_peers(peers);
  // For the probe, which is a separate process.
  const char* const words[] = {"none", "all", "corrupts", "hangs"};
  setenv("DP_SIMULATED_GPUS", std::to_string(count).c_str(), 1);
  setenv("DP_SIMULATED_PEERS", words[static_cast<int>(peers)], 1);
  setenv("XDG_CACHE_HOME", cache_.path().c_str(), 1);
  setenv("DP_PEER_PROBE_SECONDS", std::to_string(kPatience.count()).c_str(), 1);
}

SimulatedGpus::~SimulatedGpus() {
  for (const std::string& report : simt::take_reports()) {
    UNSCOPED_INFO(report);
    CHECK(report.empty());
  }
  for (const char* name : {"DP_SIMULATED_GPUS", "DP_SIMULATED_PEERS", "XDG_CACHE_HOME", "DP_PEER_PROBE_SECONDS"})
    unsetenv(name);
  simt::reset();
}

ImpatientAborts::ImpatientAborts() {
  looks_after_abort = 0;
  kernels::cuda::abort_clock = &hasty;
}
ImpatientAborts::~ImpatientAborts() { kernels::cuda::abort_clock = &standing; }
int ImpatientAborts::looks() { return looks_after_abort; }

}  // namespace dp::test
