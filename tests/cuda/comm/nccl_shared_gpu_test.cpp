// Whether ranks of nccl may share a GPU.
#include <cstdlib>
#include <vector>

#include "cuda/simulated_gpus.h"
#include "kernels/comm/nccl/nccl_api.h"
#include "kernels/comm/nccl/nccl_communicator.h"
#include "simulated_cuda/nccl/nccl_recorder.h"
#include "support/catch.h"

using namespace dp;
using namespace dp::test;
using dp::simt::SimulatedNccl;

TEST_CASE("nccl: ranks share a GPU only if the library is 2.30 or newer and its own variable allows it") {
  SimulatedGpus machine(2);
  const SimulatedNccl simulated;
  static kernels::cuda::NcclApi newer;
  newer = *kernels::cuda::nccl().api;
  newer.get_version = [](int* version) {
    *version = 23007;
    return kernels::cuda::NcclResult::success;
  };
  const std::vector<int> shared{0, 1, 0};
  const std::string refusal = "replicas 0 and 2 share cuda:0";
  for (const char* const value : {"", "0", "1"}) {
    ::setenv("NCCL_MULTI_RANK_GPU_ENABLE", value, 1);
    CHECK(kernels::cuda::nccl_refusal(shared) == refusal);  // the simulated version is 2.28
  }
  kernels::cuda::provide_nccl({&newer, "newer", {}});
  CHECK(kernels::cuda::nccl_refusal(shared).empty());
  ::setenv("NCCL_MULTI_RANK_GPU_ENABLE", "0", 1);
  CHECK(kernels::cuda::nccl_refusal(shared) == refusal);
  ::unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
  CHECK(kernels::cuda::nccl_refusal(shared) == refusal);
  CHECK(kernels::cuda::nccl_refusal(std::vector<int>{0, 1}).empty());
}
