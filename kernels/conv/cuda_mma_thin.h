// Convolutions with few input channels on tensor cores (mma.sync, sm_80 and later): the first layer of a network.
#pragma once

#include <memory>
#include <vector>

#include "kernels/device/cuda/cuda_op.h"
#include "kernels/tuning/candidates.h"

namespace dp::kernels::cuda {

// The candidates for `desc`: none or one. They have not run on a GPU, so they are not used without a trial.
// None unless:
// - x has at most 3 channels, and a window at most 160 elements;
// - x, w and y, or the gradient of y, have one 16-bit float type; dw is float32;
// - y is channels last or `any`, with a multiple of 8 channels;
// - a forward with batch normalisation does not normalise x;
// - the compute capability is 8.0 or later, and the lines of x that a block needs fit in shared memory.
std::vector<Candidate> thin_mma_candidates(const OpDesc& desc, const CudaOpOptions& options);

// Make the op. The descriptor must fit and its layouts must be resolved.
std::unique_ptr<CudaOp> make_thin_mma(const Conv2dForward& desc);
std::unique_ptr<CudaOp> make_thin_mma(const NormConv2dForward& desc);

inline constexpr const char* kThinName = "own:mma thin";  // implementation() of the op
inline constexpr const char* kThinFusedName = "own:mma thin fused";

}  // namespace dp::kernels::cuda
