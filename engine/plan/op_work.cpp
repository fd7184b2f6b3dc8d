#include "engine/plan/op_work.h"

#include <algorithm>

#include "dp/shape.h"

namespace dp::engine {
namespace {

using kernels::TensorDesc;

// x, weights and y of a convolution or linear layer, in any of its three ops.
struct Layer {
  const TensorDesc &x, &w, &y;
};
Layer layer_of(const std::string& kind, const std::vector<TensorDesc>& t) {
  if (kind.ends_with("forward")) return {t[0], t[1], t[2]};
  if (kind.ends_with("data")) return {t[2], t[1], t[0]};
  return {t[0], t[2], t[1]};
}

std::vector<std::int64_t> numbers_of(const Layer& layer) {
  const Shape &x = layer.x.shape, &w = layer.w.shape, &y = layer.y.shape;
  if (w.rank() == 2) return {x[0], w[1], 1, 1, w[0], 1, 1, 0};
  const std::int64_t kernel = w[2], stride = std::max<std::int64_t>(1, (x[2] + y[2] / 2) / y[2]);
  const std::int64_t padding = std::max<std::int64_t>(0, ((y[2] - 1) * stride + kernel - x[2] + 1) / 2);
  return {x[0], x[1], x[2], x[3], w[0], kernel, stride, padding};
}

constexpr int kPlainArguments = 4;  // maximum of a convolution

// Number of additional tensors that a fused data gradient reads for the preceding normalisation: another gradient, x
// and y (kernels::NormConv2dBackwardData).
int read_beside(const PlanStep& step) {
  int tensors = 0;
  for (const std::size_t i : {2, 3, 4}) tensors += step.args[i].space == Space::activation;
  return tensors;
}

}  // namespace

OpWork work_of(const PlanStep& step) {
  OpWork work;
  // Step names: "layer1.0.conv1 backward_data". Forward ops have only the layer name.
  const auto space = step.name.rfind(' ');
  work.kind = space == std::string::npos ? "forward" : step.name.substr(space + 1);
  work.label = step.name.substr(0, space);
  const std::vector<TensorDesc>& tensors = step.op->tensors();
  int activations = 0;
  bool norm = false;
  for (int i = 0; i < step.arg_count; ++i) {
    const Space where = step.args[static_cast<std::size_t>(i)].space;
    activations += where == Space::activation || where == Space::input;
    norm = norm || where == Space::value || where == Space::moments;
  }
  if (norm) activations = std::max(1, activations - 1);
  // Descriptors of batch normalisation and elementwise ops contain one tensor for all tensors of the same layout. The
  // statistics of a normalisation, also in the activation arena, do not count.
  if (tensors.size() == 1)
    work.bytes = static_cast<double>(tensors.front().layout.bytes) * activations;
  else
    for (const TensorDesc& tensor : tensors) work.bytes += static_cast<double>(tensor.layout.bytes);
  if (tensors.size() == 3 && tensors[1].shape.rank() == 4 && step.arg_count > kPlainArguments) {
    // Fused with parts of a batch normalisation: a data gradient also reads the tensor that was normalised.
    const Shape& w = layer_of(work.kind, tensors).w.shape;
    work.flops =
        2.0 * static_cast<double>(layer_of(work.kind, tensors).y.shape.numel()) * static_cast<double>(w.numel() / w[0]);
    if (work.kind.ends_with("data")) work.bytes += static_cast<double>(tensors[2].layout.bytes) * read_beside(step);
    work.kind = "norm_conv2d_" + work.kind;
  } else if (tensors.size() >= 3) {  // only convolutions and linear layers have weights
    const Layer layer = layer_of(work.kind, tensors);
    const Shape& w = layer.w.shape;
    work.kind = (w.rank() == 4 ? "conv2d_" : "linear_") + work.kind;
    work.convolution = numbers_of(layer);
    work.flops = 2.0 * static_cast<double>(layer.y.shape.numel()) * static_cast<double>(w.numel() / w[0]);
    if (step.name.ends_with(" backward")) work.flops *= 2;  // both gradients
    // A convolution fused with its pool, or a data gradient with the pool's: the intermediate tensor is not stored.
    if (tensors.size() == 4) work.bytes -= static_cast<double>(tensors[2].layout.bytes);
  }
  work.shape = work.kind + " " + step.op->implementation() + " " + std::to_string(work.bytes);
  for (const TensorDesc& tensor : tensors) work.shape += " " + to_string(tensor.shape) + tensor.layout.name;
  return work;
}

OpWork update_work(std::int64_t parameters) {
  // Reads and writes weights and momenta, reads gradients.
  return {"sgd_update", "all parameters", "update", 0, 5.0 * 4 * static_cast<double>(parameters), {}};
}

}  // namespace dp::engine
