#include "kernels/cuda/tuning/candidates.h"

#include <algorithm>
#include <iterator>

#include "kernels/cuda/ops/fused_op.h"
#include "kernels/cuda/tensor_core/conv_mma.h"
#include "kernels/cuda/tensor_core/thin/thin_mma.h"
#include "kernels/cuda/vendor/cublaslt_linear.h"
#include "kernels/cuda/vendor/cudnn/cudnn_conv.h"
#include "kernels/fused_steps.h"

namespace dp::kernels::cuda {

namespace {

void append(std::vector<Candidate>& candidates, std::vector<Candidate> more) {
  std::ranges::move(more, std::back_inserter(candidates));
}

}  // namespace

std::vector<Candidate> own_candidates(const OpDesc& desc, const CudaOp& baseline, const CudaOpOptions& options) {
  std::vector<Candidate> candidates = mma_candidates(desc, options);
  append(candidates, thin_mma_candidates(desc, options));
  for (const GemmChoice& choice : baseline.alternatives()) {
    CudaOpOptions with = options;
    with.gemm = choice;
    candidates.push_back(
        {gemm_name(choice), [desc, with] { return std::visit([&](const auto& d) { return make(d, with); }, desc); }});
  }
  return candidates;
}

std::vector<Candidate> library_candidates(const OpDesc& desc, const CudaOpOptions& options) {
  std::vector<Candidate> candidates = cudnn_candidates(desc, options);
  append(candidates, cublaslt_candidates(desc, options));
  return candidates;
}

std::vector<Candidate> other_candidates(const OpDesc& desc, const CudaOp& baseline, const CudaOpOptions& options) {
  std::vector<Candidate> candidates = own_candidates(desc, baseline, options);
  append(candidates, library_candidates(desc, options));
  return candidates;
}

std::unique_ptr<CudaOp> untried(const OpDesc& desc, std::unique_ptr<CudaOp> ordinary, const CudaOpOptions& options) {
  const std::vector<Candidate> candidates = mma_candidates(desc, options);
  return candidates.empty() ? std::move(ordinary) : candidates.front().make();
}

}  // namespace dp::kernels::cuda
