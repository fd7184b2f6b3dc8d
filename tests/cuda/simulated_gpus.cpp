#include "cuda/simulated_gpus.h"

#include "kernels/cuda/cuda_backend.h"
#include "kernels/plugin.h"
#include "support/catch.h"
#include "support/tested_kinds.h"

namespace dp::test {
namespace {

[[maybe_unused]] const bool provided = [] {
  kernels::provide_cuda_backend(kernels::cuda::cuda_backend());
  tested_kinds() = {DeviceKind::cuda};
  return true;
}();

}  // namespace

SimulatedGpus::SimulatedGpus(int count, simt::Peer peers) {
  simt::reset();
  simt::simulation().devices = count;
  simt::simulation().set_peers(peers);
}

SimulatedGpus::~SimulatedGpus() {
  for (const std::string& report : simt::take_reports()) {
    UNSCOPED_INFO(report);
    CHECK(report.empty());
  }
  simt::reset();
}

}  // namespace dp::test
