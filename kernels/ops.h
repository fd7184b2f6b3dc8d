// All operations of a device, as a closed set of descriptors. Context::make_op makes an Op from a descriptor by
// visiting OpDesc exhaustively, hence a backend that lacks an operation does not compile.
//
// Shapes: activations are (N,C,H,W) or (N,features), weights (O,I,kH,kW) or (O,I).
// Arguments: DP_ARGS names the pointers that Op::run takes (kernels/op_args.h). A comment says which may be null.
// Types: elements have the context's compute_type() unless stated otherwise. With mixed precision x, y, dy, dx and w
// have one 16-bit type, which their TensorDescs give. dw, b, db, and all batch normalisation data except activations,
// have the compute type. All arithmetic is in the compute type.
// Layouts: the backend chooses the layout of a TensorDesc that is any(); Op::tensors() returns the choice.
// Ops never read a destination before they write it, unless the descriptor says "adds" or "in place".
#pragma once

#include <string>
#include <variant>

#include "kernels/channels/op.h"
#include "kernels/conv/op.h"
#include "kernels/elementwise/op.h"
#include "kernels/fused/op.h"
#include "kernels/images/op.h"
#include "kernels/linear/op.h"
#include "kernels/loss/op.h"
#include "kernels/norm/op.h"
#include "kernels/op.h"
#include "kernels/pool/op.h"
#include "kernels/resample/op.h"
#include "kernels/update/op.h"

namespace dp::kernels {

using OpDesc =
    std::variant<Conv2dForward, Conv2dBackwardData, Conv2dBackwardWeights, LinearForward, LinearBackwardData,
                 LinearBackwardWeights, ReluForward, ReluBackward, FunctionForward, FunctionBackward, MaxPool2dForward,
                 MaxPool2dBackward, AvgPool2dForward, AvgPool2dBackward, AddForward, MultiplyForward, MultiplyBackward,
                 CopyChannels, ResampleForward, ResampleBackward, ChannelwiseForward, ChannelwiseBackward,
                 SoftmaxForward, SoftmaxBackward, BatchNormMoments, BatchNormMerge, BatchNormTrack, BatchNormRunning,
                 BatchNormFold, BatchNormForward, BatchNormBackwardSums, BatchNormBackward, GroupNormForward,
                 GroupNormBackward, NormConv2dForward, NormConv2dBackwardData, NormConv2dBackwardWeights,
                 LinearDropoutForward, Conv2dPoolForward, Conv2dReluBackwardData, LinearPoolBackwardData,
                 LinearReluBackward, LinearLoss, DropoutApply, DropFactors, SoftmaxCrossEntropy, LossOfOutputs, Reorder,
                 Fill, Accumulate, MovingAverage, OptimizerUpdate, UpdateDirection, TrustRatios, Orthogonalize,
                 ApplyDirection, GradNormPartials, GradNormFinish, GatherImages>;

const char* name_of(const OpDesc& desc);    // for plans and errors, e.g. "conv2d_forward"
std::string shapes_of(const OpDesc& desc);  // for errors: " x (64, 1, 28, 28) w (32, 1, 3, 3)"

// Error(usage) with the op and its shapes if types, shapes or windows do not match. compute: the device's type.
void check_shapes(const OpDesc& desc, DType compute, LowPrecision low = LowPrecision::refused);

}  // namespace dp::kernels
