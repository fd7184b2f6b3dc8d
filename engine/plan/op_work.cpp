#include "engine/plan/op_work.h"

#include <algorithm>
#include <optional>

#include "dp/shape.h"

namespace dp::engine {
namespace {

using namespace kernels;

// A convolution or linear layer in one of its ops.
struct Product {
  std::string kind;  // the op without what is fused with it
  Shape x, w, y;
  Window window{.kernel = 1, .stride = 1, .padding = 0};
  bool pooled = false;      // fused with its pool, or a data gradient with the pool's: tensor 2 is not stored
  bool normalises = false;  // fused with parts of a batch normalisation
  int read_beside = 0;      // tensors of dx's size that it reads for the normalisation before it
  int gradients = 1;        // computed by the op
};

struct ProductOf {
  std::optional<Product> operator()(const Conv2dForward& d) const {
    return Product{"conv2d_forward", d.x.shape, d.w.shape, d.y.shape, d.window};
  }
  std::optional<Product> operator()(const Conv2dBackwardData& d) const {
    return Product{"conv2d_backward_data", d.dx.shape, d.w.shape, d.dy.shape, d.window};
  }
  std::optional<Product> operator()(const Conv2dBackwardWeights& d) const {
    return Product{"conv2d_backward_weights", d.x.shape, d.dw.shape, d.dy.shape, d.window};
  }
  std::optional<Product> operator()(const LinearForward& d) const {
    return Product{"linear_forward", d.x.shape, d.w.shape, d.y.shape};
  }
  std::optional<Product> operator()(const LinearBackwardData& d) const {
    return Product{"linear_backward_data", d.dx.shape, d.w.shape, d.dy.shape};
  }
  std::optional<Product> operator()(const LinearBackwardWeights& d) const {
    return Product{"linear_backward_weights", d.x.shape, d.dw.shape, d.dy.shape};
  }
  std::optional<Product> operator()(const NormConv2dForward& d) const {
    return normalising({"norm_conv2d_forward", d.x.shape, d.w.shape, d.y.shape, d.window});
  }
  std::optional<Product> operator()(const NormConv2dBackwardData& d) const {
    Product product = normalising({"norm_conv2d_backward_data", d.dx.shape, d.w.shape, d.dy.shape, d.window});
    product.read_beside = 1 + (d.add ? 1 : 0) + (d.relu && !d.renormalize ? 1 : 0);  // x, dy2, y
    return product;
  }
  std::optional<Product> operator()(const NormConv2dBackwardWeights& d) const {
    return normalising({"norm_conv2d_backward_weights", d.x.shape, d.dw.shape, d.dy.shape, d.window});
  }
  std::optional<Product> operator()(const LinearDropoutForward& d) const { return (*this)(d.linear); }
  std::optional<Product> operator()(const LinearLoss& d) const { return (*this)(d.linear); }
  std::optional<Product> operator()(const Conv2dReluBackwardData& d) const { return (*this)(d.data); }
  std::optional<Product> operator()(const Conv2dPoolForward& d) const { return pooled((*this)(d.conv)); }
  std::optional<Product> operator()(const LinearPoolBackwardData& d) const { return pooled((*this)(d.data)); }
  std::optional<Product> operator()(const LinearReluBackward& d) const {
    return Product{.kind = "linear_backward",
                   .x = d.weights.x.shape,
                   .w = d.weights.dw.shape,
                   .y = d.weights.dy.shape,
                   .gradients = 2};
  }
  // No other op multiplies by weights.
  std::optional<Product> operator()(const auto&) const { return {}; }

 private:
  static Product normalising(Product product) {
    product.normalises = true;
    return product;
  }
  static std::optional<Product> pooled(std::optional<Product> product) {
    product->pooled = true;
    return product;
  }
};

std::vector<std::int64_t> numbers_of(const Product& product) {
  const Shape &x = product.x, &w = product.w;
  if (w.rank() == 2) return {x[0], w[1], 1, 1, w[0], 1, 1, 0};
  const Window& window = product.window;
  return {x[0], x[1], x[2], x[3], w[0], window.kernel, window.stride, window.padding};
}

// Bytes that an op without weights reads and writes.
double plain_bytes(const PlanStep& step) {
  const std::vector<TensorDesc>& tensors = step.op->tensors();
  double bytes = 0;
  if (tensors.size() != 1) {
    for (const TensorDesc& tensor : tensors) bytes += static_cast<double>(tensor.layout.bytes);
    return bytes;
  }
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
  for (const auto* stage : {&plan.forward(), &plan.running(), &plan.loss(), &plan.backward(), &plan.weights()})
    for (const PlanStep& step : *stage) seconds += floor_of(work_of(step), rates);
  return seconds;
}

OpWork work_of(const PlanStep& step) {
  OpWork work;
  work.kind = name_of(step.desc);
  work.label = step.node;
  work.bytes = plain_bytes(step);
  const std::vector<TensorDesc>& tensors = step.op->tensors();
  if (const std::optional<Product> product = std::visit(ProductOf{}, step.desc)) {
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
