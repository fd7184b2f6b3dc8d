// Convolutions on tensor cores (mma.sync, sm_80 and later), for bfloat16 and float16 with float32 sums.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "dp/error.h"
#include "kernels/conv/cuda_mma_choice.h"
#include "kernels/device/cuda/cuda_op.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/tuning/candidates.h"

namespace dp::kernels::cuda {

// The candidates for `desc`. The first one has the lowest estimated time; it is used without tuning. Empty unless:
// - x, y, w and their gradients have one 16-bit float type, except that dw is float32;
// - their layouts are channels last or `any`, and their channels are multiples of 8;
// - windows have at most 25 cells; the stride of a data gradient is 1 or 2;
// - the input of a forward that normalises has at most 1024 channels;
// - the compute capability is 8.0 or later.
std::vector<Candidate> mma_candidates(const OpDesc& desc, const CudaOpOptions& options);

// Makes the op with a given choice. The descriptor must fit and its layouts must be resolved.
// `multiprocessors`: of the device; sets the number of blocks of the resident kernels, not the results.
std::unique_ptr<CudaOp> make_mma(const Conv2dForward& desc, const MmaChoice& choice, int multiprocessors = 1);
std::unique_ptr<CudaOp> make_mma(const Conv2dBackwardData& desc, const MmaChoice& choice, int multiprocessors = 1);
std::unique_ptr<CudaOp> make_mma(const Conv2dBackwardWeights& desc, const MmaChoice& choice, int multiprocessors = 1);
std::unique_ptr<CudaOp> make_mma(const NormConv2dForward& desc, const MmaChoice& choice, int multiprocessors = 1);
std::unique_ptr<CudaOp> make_mma(const NormConv2dBackwardData& desc, const MmaChoice& choice, int multiprocessors = 1);
std::unique_ptr<CudaOp> make_mma(const NormConv2dBackwardWeights& desc, const MmaChoice& choice,
                                 int multiprocessors = 1);
std::string mma_name(const MmaChoice& choice);        // implementation() of the op
std::string mma_fused_name(const MmaChoice& choice);  // of ops with batch normalisation

// Shared by the ops on tensor cores.

// Error(usage) if a tensor is not aligned to 16 bytes.
inline void check_on_16_bytes(std::initializer_list<const void*> tensors) {
  if (KernelLoading::active()) return;
  for (const void* const tensor : tensors)
    if (reinterpret_cast<std::uintptr_t>(tensor) % 16 != 0)
      throw Error(ErrorCode::usage, "a tensor of a convolution on tensor cores is not aligned to 16 bytes");
}

}  // namespace dp::kernels::cuda
