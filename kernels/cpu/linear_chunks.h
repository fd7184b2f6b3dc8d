// The data gradient of a fully connected layer as many small matrix products.
#pragma once

#include <memory>

#include "kernels/cpu/cpu_op.h"

namespace dp::kernels {

// dy row-major (N, outputs); dx one piece per sample without padding; w the same order of inputs as dx with an input's
// weights side by side, which is the layout that oneDNN's forward product takes. nullptr for anything else.
std::unique_ptr<HostOp> make_chunked_backward_data(const LinearBackwardData& desc, const CpuOpOptions& options);

}  // namespace dp::kernels
