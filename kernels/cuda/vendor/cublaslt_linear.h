// Linear layers with cuBLASLt.
#pragma once

#include "kernels/cuda/tuning/candidates.h"

namespace dp::kernels::cuda {

// Candidates "cublaslt:66 tile18 stages35 ..", in the order of the heuristics: at most kMaxCublasLtCandidates per
// descriptor, one with options.deterministic. Empty if cuBLASLt is missing or does not support the product. Also empty
// if x and the weights order the features differently.
inline constexpr std::size_t kMaxCublasLtCandidates = 6;
std::vector<Candidate> cublaslt_candidates(const OpDesc& desc, const CudaOpOptions& options);

}  // namespace dp::kernels::cuda
