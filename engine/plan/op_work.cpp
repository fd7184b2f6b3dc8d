#include "engine/plan/op_work.h"

#include <algorithm>
#include <optional>

#include "dp/shape.h"

namespace dp::engine {
namespace {

using namespace kernels;

std::optional<Product> product_of(const OpDesc& desc) {
  return std::visit(
      [](const auto& d) -> std::optional<Product> {
        if constexpr (requires { d.product(); }) return d.product();
        return {};  // no other op multiplies by weights
      },
      desc);
}

std::vector<std::int64_t> numbers_of(const Product& product) {
  const Shape &x = product.x, &w = product.w;
  if (w.rank() == 2) return {x[0], w[1], 1, 1, w[0], 1, 1, 1, 1, 0, 0, 1, 1, 1};
  const auto& [kernel, stride, padding, dilation, more_behind] = product.window;
  if (!(more_behind == 0)) return {};  // PyTorch would pad the image in another op
  return {x[0],     x[1],     x[2],      x[3],      w[0],       kernel.h,   kernel.w,
          stride.h, stride.w, padding.h, padding.w, dilation.h, dilation.w, x[1] / w[1]};
}

// Bytes that an op without weights reads and writes.
double plain_bytes(const PlanStep& step) {
  const double parts = std::visit(
      [](const auto& d) {
        if constexpr (requires { d.bytes(); }) return d.bytes();
        return 0.0;  // it reads and writes whole tensors
      },
      step.desc);
  if (parts > 0) return parts;
  const std::vector<TensorDesc>& tensors = step.op->tensors();
  double bytes = 0;
  if (tensors.size() != 1) {
    for (const TensorDesc& tensor : tensors) bytes += static_cast<double>(tensor.layout.bytes);
    return bytes;
  }
  const int known = std::visit(
      []<typename D>(const D&) {
        if constexpr (requires { D::kActivations; }) return D::kActivations;
        return 0;
      },
      step.desc);
  if (known > 0) return static_cast<double>(tensors.front().layout.bytes) * known;
  // Descriptors of batch normalisation and elementwise ops contain one tensor for all tensors of the same layout. The
  // statistics of a normalisation, also in the activation arena, do not count.
  int activations = 0;
  bool norm = false;
  for (int i = 0; i < step.arg_count; ++i) {
    const Space where = step.args[static_cast<std::size_t>(i)].space;
    activations += where == Space::activation || where == Space::input;
    norm = norm || where == Space::value || where == Space::moments;
  }
  if (norm && activations > 1) --activations;
  return static_cast<double>(tensors.front().layout.bytes) * activations;
}

}  // namespace

double floor_of(const OpWork& work, const kernels::Rates& rates) {
  return rates.flops > 0 ? std::max(work.flops / rates.flops, work.bytes / rates.bytes) : 0;
}

double floor_of(const Plan& plan, const kernels::Rates& rates) {
  double seconds = 0;
  for (const auto* pass :
       {&plan.forward(), &plan.running_statistics(), &plan.loss(), &plan.backward(), &plan.weight_gradients()})
    for (const PlanStep& step : *pass) seconds += floor_of(work_of(step), rates);
  return seconds;
}

OpWork work_of(const PlanStep& step) {
  OpWork work;
  work.kind = name_of(step.desc);
  work.label = step.node;
  work.bytes = plain_bytes(step);
  const std::vector<TensorDesc>& tensors = step.op->tensors();
  if (const std::optional<Product> product = product_of(step.desc)) {
    const Shape& w = product->w;
    work.kind = product->kind;
    work.flops =
        2.0 * product->gradients * static_cast<double>(product->y.numel()) * static_cast<double>(w.numel() / w[0]);
    if (!product->normalises) work.convolution = numbers_of(*product);
    if (product->pooled) work.bytes -= static_cast<double>(tensors[2].layout.bytes);
    if (product->read_beside > 0) work.bytes += static_cast<double>(tensors[2].layout.bytes) * product->read_beside;
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
