#include "kernels/device/cuda/cuda_op.h"

#include <utility>

#include "dp/error.h"

namespace dp::kernels::cuda {
namespace {

struct NativeOrder : NativeLayout {
  NativeOrder(std::string kind_name, const Order& memory_order) : kind(std::move(kind_name)), order(memory_order) {}
  std::string kind;  // of the layout's name: the order without shape and type
  Order order;
};

const NativeOrder& native_order(const Layout& layout) {
  const auto* const native = dynamic_cast<const NativeOrder*>(layout.native.get());
  if (native == nullptr)
    throw Error(ErrorCode::usage, "the layout '" + layout.name + "' is not one of the CUDA backend");
  return *native;
}

const char* short_name(DType type) {
  constexpr const char* kNames[] = {"f32", "f64", "u8", "i32", "i64", "bf16", "f16"};
  return kNames[static_cast<std::size_t>(type)];
}

Layout make(const std::string& kind, const Shape& shape, DType type, const Order& order) {
  return {kind + ":" + short_name(type) + to_string(shape), static_cast<std::size_t>(shape.numel()) * size_of(type),
          std::make_shared<const NativeOrder>(kind, order)};
}

// Row-major order. Channels and pixels matter only for rank 4, which also has a channels-last order.
Order plain_order(const Shape& shape) {
  if (shape.rank() == 4) return {shape[0], shape[1], shape[2] * shape[3], false};
  return {1, 1, shape.numel(), false};
}

}  // namespace

Layout plain(const Shape& shape, DType type) {
  return make(shape.rank() == 4 ? "nchw" : "plain", shape, type, plain_order(shape));
}

Layout channels_last(const Shape& shape, DType type) {
  if (shape.rank() != 4 || shape[1] == 1 || shape[2] * shape[3] == 1) return plain(shape, type);
  Order order = plain_order(shape);
  order.channels_last = true;
  return make("nhwc", shape, type, order);
}

Layout with_type(const TensorDesc& tensor, DType type) {
  const NativeOrder& native = native_order(tensor.layout);
  return make(native.kind, tensor.shape, type, native.order);
}

Layout linear_channels_last(const Shape& weights, const Shape& input, DType type) {
  const std::int64_t channels = input[1], pixels = input[2] * input[3];
  if (channels == 1 || pixels == 1) return plain(weights, type);
  return make("o(hw" + std::to_string(pixels) + ")c", weights, type, {weights[0], channels, pixels, true});
}

Order order_of(const TensorDesc& tensor) { return native_order(tensor.layout).order; }

bool is_channels_last(const TensorDesc& tensor) {
  const Order order = order_of(tensor);
  return order.channels_last || order.channels == 1 || order.pixels == 1;
}

TensorDesc resolved_channels_last(const TensorDesc& tensor) {
  TensorDesc result = tensor;
  if (result.layout.any()) result.layout = channels_last(tensor.shape, tensor.type);
  return result;
}

TensorDesc resolved_plain(const TensorDesc& tensor) {
  TensorDesc result = tensor;
  if (result.layout.any()) result.layout = plain(tensor.shape, tensor.type);
  return result;
}

}  // namespace dp::kernels::cuda
