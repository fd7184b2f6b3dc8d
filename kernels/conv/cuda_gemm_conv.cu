// Convolutions as matrix products: forward, data gradient, weight gradient.
#include "kernels/conv/cuda_gemm_conv.h"

#include <algorithm>
#include <limits>

#include "dp/error.h"
#include "kernels/conv/cuda_thin.h"
#include "kernels/device/cuda/cuda_op.h"
#include "kernels/device/cuda/pack.h"
#include "kernels/linear/cuda_gemm_tile.h"
#include "kernels/op_args.h"

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

}  // namespace

Strides strides_of(const TensorDesc& tensor) {
  const std::int64_t channels = tensor.shape[1], height = tensor.shape[2], width = tensor.shape[3];
  const std::int64_t image = channels * height * width;
  if (is_channels_last(tensor) && channels != 1) return {image, width * channels, channels, 1};
  return {image, width, 1, height * width};
}

void require_countable(const TensorDesc& x, const TensorDesc& w, const TensorDesc& y) {
  const Shape &xs = x.shape, &ys = y.shape;
  count(xs[0] * xs[2] * xs[3], "pixels of input", kBatch), count(ys[0] * ys[2] * ys[3], "pixels of output", kBatch);
  count(w.shape.numel(), "weights", kLayer), count(xs.without_first().numel(), "elements of an image", kLayer);
  count(ys.without_first().numel(), "elements of an output image", kLayer);
}

Geometry geometry_of(const TensorDesc& x, const TensorDesc& w, const TensorDesc& y, const Window& window) {
  if (!is_plain(x, w, window)) throw Error(ErrorCode::usage, "a matrix product cannot compute this convolution");
  require_countable(x, w, y);
  const Shape &xs = x.shape, &ys = y.shape;
  return {.batch = static_cast<int>(xs[0]),
          .channels = Count(static_cast<int>(xs[1])),
          .height = Count(static_cast<int>(xs[2])),
          .width = Count(static_cast<int>(xs[3])),
          .out_channels = Count(static_cast<int>(ys[1])),
          .out_height = Count(static_cast<int>(ys[2])),
          .out_width = Count(static_cast<int>(ys[3])),
          .kernel_height = window.kernel.h,
          .kernel_width = Count(window.kernel.w),
          .stride = window.stride.h,
          .padding = window.padding.h,
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

namespace {

constexpr int kChannels = 32, kLanes = 8;  // of a block
constexpr int kChunkCells = 1024, kMostChunks = 256;

// A block adds one chunk of cells for kChannels channels. blockIdx: tile of channels,
// chunk. The sums of chunk c are stored at out + c * channels.
template <typename T>
__global__ void __launch_bounds__(kChannels* kLanes)
    bias_gradient_kernel(const T* dy, float* out, Strides strides, int channels, int cells, int height, int width,
                         int chunk) {
  DP_SHARED(float, lanes, [kLanes][kChannels]);
  const int at = static_cast<int>(threadIdx.x) % kChannels, lane = static_cast<int>(threadIdx.x) / kChannels;
  const int channel = static_cast<int>(blockIdx.x) * kChannels + at;
  const int begin = static_cast<int>(blockIdx.y) * chunk, end = min(cells, begin + chunk);
  float sum = 0;
  if (channel < channels)
    for (int cell = begin + lane; cell < end; cell += kLanes) {
      const int line = cell / width;
      sum += to_float(dy[strides.of_cell(line / height, line % height, cell % width) + channel * strides.channel]);
    }
  lanes[lane][at] = sum;
  __syncthreads();
  if (lane != 0 || channel >= channels) return;
  for (int other = 1; other < kLanes; ++other) sum += lanes[other][at];
  out[static_cast<long long>(blockIdx.y) * channels + channel] = sum;
}

}  // namespace

BiasGradient::BiasGradient(DType type, const Geometry& g)
    : type_(type),
      strides_(g.y),
      channels_(g.out_channels),
      cells_(g.batch * g.out_height * g.out_width),
      height_(g.out_height),
      width_(g.out_width),
      chunks_(std::clamp((cells_ + kChunkCells - 1) / kChunkCells, 1, kMostChunks)) {}

void BiasGradient::enqueue(cudaStream_t stream, const void* dy, float* db, float* workspace) const {
  const unsigned blocks = blocks_for(channels_, kChannels);
  const int chunk = (cells_ + chunks_ - 1) / chunks_;
  in_type(type_, [&]<typename T>() {
    launch({"bias_gradient", dim3(blocks, static_cast<unsigned>(chunks_)), dim3(kChannels * kLanes), stream},
           bias_gradient_kernel<T>, static_cast<const T*>(dy), workspace, strides_, channels_, cells_, height_, width_,
           chunk);
  });
  const Strides dense{channels_, channels_, channels_, 1};
  launch({"bias_gradient", dim3(blocks), dim3(kChannels * kLanes), stream}, bias_gradient_kernel<float>,
         static_cast<const float*>(workspace), db, dense, channels_, chunks_, 1, 1, chunks_);
}

// Conv2dForward.

template class Gemm<ForwardPoints, Nothing>;

namespace {

class ThinForwardOp final : public CudaOp {
 public:
  ThinForwardOp(const Conv2dForward& d, const Geometry& g) : thin_(d.x.type, g, d.bias, d.relu) {
    tensors_ = {d.x, d.w, d.y};
  }
  std::string implementation() const override { return "own:thin"; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<Conv2dForward>(pointers);
    thin_.enqueue(stream, args.x, args.w, in(args.b), args.y);
  }

 private:
  ThinForward thin_;
};

class Conv2dForwardOp final : public CudaOp {
 public:
  Conv2dForwardOp(const Conv2dForward& d, const Geometry& g, const CudaOpOptions& options)
      : gemm_(d.x.type, g, 1, d.bias, d.relu, input_in_quads(g), weights_in_quads(g), options.gemm) {
    tensors_ = {d.x, d.w, d.y};
  }

  std::size_t workspace_bytes() const override { return gemm_.workspace_bytes(); }
  std::string implementation() const override { return gemm_.name(); }
  std::vector<GemmChoice> alternatives() const override { return gemm_.alternatives(); }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<Conv2dForward>(pointers);
    gemm_.enqueue(stream, "conv2d_forward", args.x, args.w, in(args.b), args.y, nullptr, out(workspace), {});
  }

 private:
  ForwardGemm gemm_;
};

}  // namespace

std::unique_ptr<CudaOp> make(const Conv2dForward& d, const CudaOpOptions& options) {
  const Conv2dForward resolved{
      resolved_channels_last(d.x), resolved_channels_last(d.w), resolved_channels_last(d.y), d.window, d.bias, d.relu};
  if (!is_plain(d.x, d.w, d.window)) return make_direct(resolved);
  const Geometry g = geometry_of(resolved.x, resolved.w, resolved.y, d.window);
  if (is_thin(g)) return std::make_unique<ThinForwardOp>(resolved, g);
  return std::make_unique<Conv2dForwardOp>(resolved, g, options);
}

// Conv2dBackwardData.

template class Gemm<DataPoints, Nothing>;

namespace {

class Conv2dBackwardDataOp final : public CudaOp {
 public:
  Conv2dBackwardDataOp(const Conv2dBackwardData& d, const CudaOpOptions& options) : gemm_(gemm(d, options)) {
    tensors_ = {d.dy, d.w, d.dx};
  }

  std::size_t workspace_bytes() const override { return gemm_.workspace_bytes(); }
  std::string implementation() const override { return gemm_.name(); }
  std::vector<GemmChoice> alternatives() const override { return gemm_.alternatives(); }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<Conv2dBackwardData>(pointers);
    gemm_.enqueue(stream, "conv2d_backward_data", args.dy, args.w, nullptr, args.dx, nullptr, out(workspace), {});
  }

 private:
  static DataGemm gemm(const Conv2dBackwardData& d, const CudaOpOptions& options) {
    const Geometry g = geometry_of(d.dx, d.w, d.dy, d.window);
    return {d.w.type, g, g.stride * g.stride, false, false, output_in_quads(g), weights_in_quads(g), options.gemm};
  }

  DataGemm gemm_;
};

}  // namespace

std::unique_ptr<CudaOp> make(const Conv2dBackwardData& d, const CudaOpOptions& options) {
  const Conv2dBackwardData resolved{resolved_channels_last(d.dy), resolved_channels_last(d.w),
                                    resolved_channels_last(d.dx), d.window};
  if (!is_plain(d.dx, d.w, d.window)) return make_direct(resolved);
  return std::make_unique<Conv2dBackwardDataOp>(resolved, options);
}

// Conv2dBackwardWeights.

template class Gemm<WeightsPoints, Nothing>;

namespace {

class ThinWeightsOp final : public CudaOp {
 public:
  ThinWeightsOp(const Conv2dBackwardWeights& d, const Geometry& g) : thin_(d.x.type, g, d.bias) {
    tensors_ = {d.x, d.dy, d.dw};
  }

  std::size_t workspace_bytes() const override { return thin_.workspace_bytes(); }
  std::string implementation() const override { return "own:thin"; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<Conv2dBackwardWeights>(pointers);
    thin_.enqueue(stream, args.x, args.dy, out(args.dw), out(args.db), out(workspace));
  }

 private:
  ThinWeights thin_;
};

class Conv2dBackwardWeightsOp final : public CudaOp {
 public:
  Conv2dBackwardWeightsOp(const Conv2dBackwardWeights& d, const Geometry& g, const CudaOpOptions& options)
      : gemm_(d.x.type, g, 1, d.bias, false, input_in_quads(g), output_in_quads(g), options.gemm) {
    tensors_ = {d.x, d.dy, d.dw};
  }

  std::size_t workspace_bytes() const override { return gemm_.workspace_bytes(); }
  std::string implementation() const override { return gemm_.name(); }
  std::vector<GemmChoice> alternatives() const override { return gemm_.alternatives(); }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<Conv2dBackwardWeights>(pointers);
    gemm_.enqueue(stream, "conv2d_backward_weights", args.x, args.dy, nullptr, args.dw, out(args.db), out(workspace),
                  {});
  }

 private:
  WeightsGemm gemm_;
};

}  // namespace

std::unique_ptr<CudaOp> make(const Conv2dBackwardWeights& d, const CudaOpOptions& options) {
  const Conv2dBackwardWeights resolved{resolved_channels_last(d.x), resolved_channels_last(d.dy),
                                       resolved_channels_last(d.dw), d.window, d.bias};
  if (!is_plain(d.x, d.dw, d.window)) return make_direct(resolved);
  const Geometry g = geometry_of(resolved.x, resolved.dw, resolved.dy, d.window);
  if (is_thin(g)) return std::make_unique<ThinWeightsOp>(resolved, g);
  return std::make_unique<Conv2dBackwardWeightsOp>(resolved, g, options);
}

}  // namespace dp::kernels::cuda
