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

// One overload per descriptor; make_cpu_op selects it.
std::unique_ptr<HostOp> make(const Conv2dForward& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const Conv2dBackwardData& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const Conv2dBackwardWeights& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const LinearForward& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const LinearBackwardData& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const LinearBackwardWeights& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const ReluForward& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const ReluBackward& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const MaxPool2dForward& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const MaxPool2dBackward& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const AvgPool2dForward& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const AvgPool2dBackward& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const AddForward& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const BatchNormMoments& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const BatchNormMerge& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const BatchNormTrack& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const BatchNormRunning& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const BatchNormFold& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const BatchNormForward& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const BatchNormBackwardSums& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const BatchNormBackward& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const NormConv2dForward& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const NormConv2dBackwardData& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const NormConv2dBackwardWeights& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const LinearDropoutForward& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const Conv2dPoolForward& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const Conv2dReluBackwardData& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const LinearPoolBackwardData& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const LinearReluBackward& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const LinearLoss& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const DropoutApply& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const SoftmaxCrossEntropy& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const Reorder& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const Fill& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const Accumulate& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const MovingAverage& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const OptimizerUpdate& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const GradNormPartials& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const GradNormFinish& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make(const GatherImages& desc, const CpuOpOptions& options);

}  // namespace dp::kernels
