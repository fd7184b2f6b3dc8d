// The CPU ops in float32, and with bfloat16 activations, by oneDNN or by our own vectorised loops.
#pragma once

#include <memory>

#include "kernels/device/host/host_context.h"

namespace dp::kernels {

struct CpuOpOptions {
  int threads = 1;                   // threads of each op, whatever the caller's OpenMP setting
  bool deterministic = false;        // equal inputs give equal bits in every run with the same number of threads
  bool fast_convolutions = false;    // Winograd also for forward and data gradient
  bool direct_convolutions = false;  // Winograd for none
  bool bfloat16 = false;             // accepts ops with bfloat16 activations
  bool emulate_bfloat16 = false;     // makes them of float32 ops (widened_op.h), on every processor
};

// Error(usage) with the op and its shapes if they do not match.
std::unique_ptr<HostOp> make_cpu_op(const OpDesc& desc, const CpuOpOptions& options);

}  // namespace dp::kernels
