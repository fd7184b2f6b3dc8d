// The ways to compute an op that the tuner may choose among, beside the pinned one, which make() makes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_op.h"

namespace dp::kernels::cuda {

struct Candidate {
  std::string name;                               // what implementation() of the op says
  std::function<std::unique_ptr<CudaOp>()> make;  // null or an Error: this device does not have it
};

// In an order that is the same in every run; the likeliest first. All ops take the tensors that `pinned` resolved.
std::vector<Candidate> own_candidates(const OpDesc& desc, const CudaOp& pinned, const CudaOpOptions& options);
std::vector<Candidate> library_candidates(const OpDesc& desc,
                                          const CudaOpOptions& options);  // asking takes tens of milliseconds
std::vector<Candidate> other_candidates(const OpDesc& desc, const CudaOp& pinned,
                                        const CudaOpOptions& options);  // both

// The one to use where nothing is tried: that of tensor cores where they fit (conv_mma.h), or `ordinary`, which make() made. To
// try, the ordinary one stays the pinned one: it tells whether the others are right.
std::unique_ptr<CudaOp> untried(const OpDesc& desc, std::unique_ptr<CudaOp> ordinary, const CudaOpOptions& options);

}  // namespace dp::kernels::cuda
