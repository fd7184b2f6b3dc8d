#include "kernels/cuda/tuning/candidates.h"

#include <algorithm>
#include <iterator>

#include "kernels/cuda/ops/fused_op.h"
#include "kernels/cuda/tensor_core/conv_mma.h"
#include "kernels/cuda/vendor/cublaslt_linear.h"
#include "kernels/cuda/vendor/cudnn/cudnn_conv.h"
#include "kernels/fused_steps.h"

namespace dp::kernels::cuda {

namespace {

void append(std::vector<Way>& ways, std::vector<Way> more) { std::ranges::move(more, std::back_inserter(ways)); }

}  // namespace

std::vector<Way> own_ways(const OpDesc& desc, const CudaOp& pinned, const CudaOpOptions& options) {
  std::vector<Way> ways = mma_ways(desc, options);
  for (const GemmChoice& choice : pinned.alternatives()) {
    CudaOpOptions with = options;
    with.gemm = choice;
    ways.push_back(
        {gemm_name(choice), [desc, with] { return std::visit([&](const auto& d) { return make(d, with); }, desc); }});
  }
  return ways;
}

std::vector<Way> library_ways(const OpDesc& desc, const CudaOpOptions& options) {
  std::vector<Way> ways = cudnn_ways(desc, options);
  append(ways, cublaslt_ways(desc, options));
  return ways;
}

std::vector<Way> ways_beside(const OpDesc& desc, const CudaOp& pinned, const CudaOpOptions& options) {
  std::vector<Way> ways = own_ways(desc, pinned, options);
  append(ways, library_ways(desc, options));
  return ways;
}

std::unique_ptr<CudaOp> untried(const OpDesc& desc, std::unique_ptr<CudaOp> ordinary, const CudaOpOptions& options) {
  const std::vector<Way> ways = mma_ways(desc, options);
  return ways.empty() ? std::move(ordinary) : ways.front().make();
}

}  // namespace dp::kernels::cuda
