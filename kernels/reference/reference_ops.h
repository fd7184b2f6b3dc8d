// The reference ops: naive loops over row-major float64. With mixed precision each output is then rounded to its type.
// One overload of make() per descriptor, so that a missing op does not compile.
#pragma once

#include <memory>

#include "kernels/host/host_op.h"

namespace dp::kernels::reference {

// The row-major layout. Its name contains shape and type, hence equal names mean equal layouts.
Layout plain_layout(const Shape& shape, DType type);
std::size_t element_bytes(DType type);  // as Context::element_bytes

// Error(usage) with the op and its shapes if shapes do not match, if an element type is not supported, or if a layout
// is not this backend's.
std::unique_ptr<HostOp> make_op(const OpDesc& desc);

std::unique_ptr<HostOp> make(const Conv2dForward& desc);
std::unique_ptr<HostOp> make(const Conv2dBackwardData& desc);
std::unique_ptr<HostOp> make(const Conv2dBackwardWeights& desc);
std::unique_ptr<HostOp> make(const LinearForward& desc);
std::unique_ptr<HostOp> make(const LinearBackwardData& desc);
std::unique_ptr<HostOp> make(const LinearBackwardWeights& desc);
std::unique_ptr<HostOp> make(const ReluForward& desc);
std::unique_ptr<HostOp> make(const ReluBackward& desc);
std::unique_ptr<HostOp> make(const MaxPool2dForward& desc);
std::unique_ptr<HostOp> make(const MaxPool2dBackward& desc);
std::unique_ptr<HostOp> make(const AvgPool2dForward& desc);
std::unique_ptr<HostOp> make(const AvgPool2dBackward& desc);
std::unique_ptr<HostOp> make(const AddForward& desc);
std::unique_ptr<HostOp> make(const BatchNormMoments& desc);
std::unique_ptr<HostOp> make(const BatchNormMerge& desc);
std::unique_ptr<HostOp> make(const BatchNormTrack& desc);
std::unique_ptr<HostOp> make(const BatchNormRunning& desc);
std::unique_ptr<HostOp> make(const BatchNormFold& desc);
std::unique_ptr<HostOp> make(const BatchNormForward& desc);
std::unique_ptr<HostOp> make(const BatchNormBackwardSums& desc);
std::unique_ptr<HostOp> make(const BatchNormBackward& desc);
std::unique_ptr<HostOp> make(const NormConv2dForward& desc);
std::unique_ptr<HostOp> make(const NormConv2dBackwardData& desc);
std::unique_ptr<HostOp> make(const NormConv2dBackwardWeights& desc);
std::unique_ptr<HostOp> make(const LinearDropoutForward& desc);
std::unique_ptr<HostOp> make(const Conv2dPoolForward& desc);
std::unique_ptr<HostOp> make(const Conv2dReluBackwardData& desc);
std::unique_ptr<HostOp> make(const LinearPoolBackwardData& desc);
std::unique_ptr<HostOp> make(const LinearReluBackward& desc);
std::unique_ptr<HostOp> make(const LinearLoss& desc);
std::unique_ptr<HostOp> make(const DropoutApply& desc);
std::unique_ptr<HostOp> make(const SoftmaxCrossEntropy& desc);
std::unique_ptr<HostOp> make(const Reorder& desc);
std::unique_ptr<HostOp> make(const Fill& desc);
std::unique_ptr<HostOp> make(const Accumulate& desc);
std::unique_ptr<HostOp> make(const MovingAverage& desc);
std::unique_ptr<HostOp> make(const OptimizerUpdate& desc);
std::unique_ptr<HostOp> make(const GradNormPartials& desc);
std::unique_ptr<HostOp> make(const GradNormFinish& desc);
std::unique_ptr<HostOp> make(const GatherImages& desc);

}  // namespace dp::kernels::reference
