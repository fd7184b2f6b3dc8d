#include "kernels/cuda/gemm/conv_geometry.h"

#include <limits>

#include "dp/error.h"
#include "kernels/cuda/runtime/tensor_layout.h"

namespace dp::kernels::cuda {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<int>::max() / 2;

constexpr const char *kBatch = "use a smaller batch", *kLayer = "use a smaller layer";

int count(std::int64_t value, const char* what, const char* remedy) {
  if (value > kMost)
    throw Error(ErrorCode::usage, "a layer has " + std::to_string(value) + " " + what +
                                      ", but the CUDA backend supports at most " + std::to_string(kMost) + "; " +
                                      remedy);
  return static_cast<int>(value);
}

Strides strides_of(const TensorDesc& tensor) {
  const std::int64_t channels = tensor.shape[1], height = tensor.shape[2], width = tensor.shape[3];
  const std::int64_t image = channels * height * width;
  if (is_channels_last(tensor) && channels != 1) return {image, width * channels, channels, 1};
  return {image, width, 1, height * width};
}

}  // namespace

Geometry geometry_of(const TensorDesc& x, const TensorDesc& w, const TensorDesc& y, const Window& window) {
  const Shape &xs = x.shape, &ys = y.shape;
  count(xs[0] * xs[2] * xs[3], "pixels of input", kBatch), count(ys[0] * ys[2] * ys[3], "pixels of output", kBatch);
  count(w.shape.numel(), "weights", kLayer), count(xs.without_first().numel(), "elements of an image", kLayer);
  count(ys.without_first().numel(), "elements of an output image", kLayer);
  return {.batch = static_cast<int>(xs[0]),
          .channels = Count(static_cast<int>(xs[1])),
          .height = Count(static_cast<int>(xs[2])),
          .width = Count(static_cast<int>(xs[3])),
          .out_channels = Count(static_cast<int>(ys[1])),
          .out_height = Count(static_cast<int>(ys[2])),
          .out_width = Count(static_cast<int>(ys[3])),
          .kernel_height = window.kernel,
          .kernel_width = Count(window.kernel),
          .stride = window.stride,
          .padding = window.padding,
          .group = Count(static_cast<int>(xs[1])),
          .x = strides_of(x),
          .w = strides_of(w),
          .y = strides_of(y),
          .groups = 0};
}

Geometry linear_geometry(const TensorDesc& x, const TensorDesc& w) {
  const int features = count(w.shape[1], "features", kLayer), outputs = count(w.shape[0], "outputs", kLayer);
  const Strides input{features, features, features, 1}, output{outputs, outputs, outputs, 1};
  Strides weights = input;
  int group = features;
  if (x.shape.rank() == 4) {
    const int channels = static_cast<int>(x.shape[1]), pixels = features / channels;
    const bool x_last = order_of(x).channels_last, w_last = order_of(w).channels_last;
    // Features are numbered in x's order. Neighbouring features of a group are `weights.channel` elements apart in w.
    if (x_last && !w_last) group = channels, weights.channel = pixels;
    if (!x_last && w_last) group = pixels, weights.channel = channels;
  }
  return {.batch = count(x.shape[0], "samples", kBatch),
          .channels = Count(features),
          .height = Count(1),
          .width = Count(1),
          .out_channels = Count(outputs),
          .out_height = Count(1),
          .out_width = Count(1),
          .kernel_height = 1,
          .kernel_width = Count(1),
          .stride = 1,
          .padding = 0,
          .group = Count(group),
          .x = input,
          .w = weights,
          .y = output,
          .groups = 1};
}

LinearTensors resolved_linear(const TensorDesc& x, const TensorDesc& w, const TensorDesc& y) {
  LinearTensors tensors{x, w, resolved_plain(y)};
  if (x.layout.any()) {
    const bool plain_weights = !w.layout.any() && !order_of(w).channels_last;
    tensors.x = plain_weights ? resolved_plain(x) : resolved_channels_last(x);
  }
  if (w.layout.any())
    tensors.w.layout =
        order_of(tensors.x).channels_last ? linear_channels_last(w.shape, x.shape, w.type) : plain(w.shape, w.type);
  return tensors;
}

}  // namespace dp::kernels::cuda
