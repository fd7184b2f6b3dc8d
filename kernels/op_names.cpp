#include "kernels/ops.h"

namespace dp::kernels {
namespace {

template <typename... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <typename... F>
Overloaded(F...) -> Overloaded<F...>;  // clang 14 deduces no aggregates

}  // namespace

const char* name_of(const OpDesc& desc) {
  return std::visit(Overloaded{[](const Conv2dForward&) { return "conv2d_forward"; },
                               [](const Conv2dBackwardData&) { return "conv2d_backward_data"; },
                               [](const Conv2dBackwardWeights&) { return "conv2d_backward_weights"; },
                               [](const LinearForward&) { return "linear_forward"; },
                               [](const LinearBackwardData&) { return "linear_backward_data"; },
                               [](const LinearBackwardWeights&) { return "linear_backward_weights"; },
                               [](const ReluForward&) { return "relu_forward"; },
                               [](const ReluBackward&) { return "relu_backward"; },
                               [](const MaxPool2dForward&) { return "max_pool2d_forward"; },
                               [](const MaxPool2dBackward&) { return "max_pool2d_backward"; },
                               [](const AvgPool2dForward&) { return "avg_pool2d_forward"; },
                               [](const AvgPool2dBackward&) { return "avg_pool2d_backward"; },
                               [](const AddForward&) { return "add_forward"; },
                               [](const BatchNormMoments&) { return "batch_norm_moments"; },
                               [](const BatchNormMerge&) { return "batch_norm_merge"; },
                               [](const BatchNormTrack&) { return "batch_norm_track"; },
                               [](const BatchNormRunning&) { return "batch_norm_running"; },
                               [](const BatchNormFold&) { return "batch_norm_fold"; },
                               [](const BatchNormForward&) { return "batch_norm_forward"; },
                               [](const BatchNormBackwardSums&) { return "batch_norm_backward_sums"; },
                               [](const BatchNormBackward&) { return "batch_norm_backward"; },
                               [](const NormConv2dForward&) { return "norm_conv2d_forward"; },
                               [](const NormConv2dBackwardData&) { return "norm_conv2d_backward_data"; },
                               [](const NormConv2dBackwardWeights&) { return "norm_conv2d_backward_weights"; },
                               [](const LinearDropoutForward&) { return "linear_dropout_forward"; },
                               [](const Conv2dPoolForward&) { return "conv2d_pool_forward"; },
                               [](const Conv2dReluBackwardData&) { return "conv2d_relu_backward_data"; },
                               [](const LinearPoolBackwardData&) { return "linear_pool_backward_data"; },
                               [](const LinearReluBackward&) { return "linear_relu_backward"; },
                               [](const LinearLoss&) { return "linear_loss"; },
                               [](const MovingAverage&) { return "moving_average"; },
                               [](const DropoutApply&) { return "dropout"; },
                               [](const SoftmaxCrossEntropy&) { return "softmax_cross_entropy"; },
                               [](const Reorder&) { return "reorder"; },
                               [](const Fill&) { return "fill"; },
                               [](const Accumulate&) { return "accumulate"; },
                               [](const OptimizerUpdate& d) { return name_of(d.rule); },
                               [](const GradNormPartials&) { return "grad_norm_partials"; },
                               [](const GradNormFinish&) { return "grad_norm_finish"; },
                               [](const GatherImages&) { return "gather_images"; }},
                    desc);
}

}  // namespace dp::kernels
