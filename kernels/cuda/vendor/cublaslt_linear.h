// Linear layers by cuBLASLt.
#pragma once

#include "kernels/cuda/tuning/candidates.h"

namespace dp::kernels::cuda {

// Ways "cublaslt:66 tile18 stages35 ..", what its heuristics advise first; at most kMostCublasLtWays, with options.deterministic one.
// None where cuBLASLt is missing or does not have the product, and where features lie in x in another order than in the weights.
inline constexpr std::size_t kMostCublasLtWays = 6;
std::vector<Candidate> cublaslt_candidates(const OpDesc& desc, const CudaOpOptions& options);

}  // namespace dp::kernels::cuda
