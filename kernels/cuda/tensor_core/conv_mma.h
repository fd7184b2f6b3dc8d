// Convolutions on tensor cores (mma.sync, sm_80 and later), for bfloat16 and float16 with float32 sums.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_op.h"
#include "kernels/cuda/tensor_core/conv_mma_choice.h"
#include "kernels/cuda/tuning/candidates.h"

namespace dp::kernels::cuda {

// The ways to compute it, the one to use untried first; none where it does not fit: x, y, w and their gradients must be of one low
// type (dw of float32), lie channels last, or be the backend's to lay out, with multiples of 8 channels, windows be at most 5x5, for
// the data gradient of stride 1 or 2, what a forward normalises have at most 1024 channels, and the device's compute capability be 8.0
// or later.
std::vector<Candidate> mma_candidates(const OpDesc& desc, const CudaOpOptions& options);

// With a given choice; the descriptor must fit and its layouts be resolved. `multiprocessors`: of the device, for how many blocks
// share resident weights; the results do not depend on it.
std::unique_ptr<CudaOp> make_mma(const Conv2dForward& desc, const MmaChoice& choice, int multiprocessors = 1);
std::unique_ptr<CudaOp> make_mma(const Conv2dBackwardData& desc, const MmaChoice& choice, int multiprocessors = 1);
std::unique_ptr<CudaOp> make_mma(const Conv2dBackwardWeights& desc, const MmaChoice& choice, int multiprocessors = 1);
std::unique_ptr<CudaOp> make_mma(const NormConv2dForward& desc, const MmaChoice& choice, int multiprocessors = 1);
std::unique_ptr<CudaOp> make_mma(const NormConv2dBackwardData& desc, const MmaChoice& choice, int multiprocessors = 1);
std::unique_ptr<CudaOp> make_mma(const NormConv2dBackwardWeights& desc, const MmaChoice& choice,
                                 int multiprocessors = 1);
std::string mma_name(const MmaChoice& choice);        // what implementation() says
std::string mma_fused_name(const MmaChoice& choice);  // of ops with batch normalisation

}  // namespace dp::kernels::cuda
