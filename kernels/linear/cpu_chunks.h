// The data gradient of a linear layer as many small matrix products (docs/decisions/0015).
#pragma once

#include <memory>

#include "kernels/device/cpu/cpu_op.h"

namespace dp::kernels {

// Requires dy row-major (N, outputs), dx contiguous per sample without padding, and w with the inputs in dx's order and
// the weights of each input contiguous. That is the weight layout of oneDNN's forward product. Returns nullptr
// otherwise.
std::unique_ptr<HostOp> make_chunked_backward_data(const LinearBackwardData& desc, const CpuOpOptions& options);

}  // namespace dp::kernels
