#include "kernels/cuda/candidates.h"

namespace dp::kernels::cuda {

std::vector<Way> ways_beside(const OpDesc& desc, const CudaOp& pinned, const CudaOpOptions& options) {
  std::vector<Way> ways;
  for (const GemmChoice& choice : pinned.alternatives()) {
    CudaOpOptions with = options;
    with.gemm = choice;
    ways.push_back(
        {gemm_name(choice), [desc, with] { return std::visit([&](const auto& d) { return make(d, with); }, desc); }});
  }
  return ways;
}

}  // namespace dp::kernels::cuda
