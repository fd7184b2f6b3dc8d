// Convolutions in groups, dilated, or with different sizes across and down: without a matrix product, a thread for each
// result. For depthwise convolutions memory is the limit, and neighbouring threads read neighbouring channels.
#include <algorithm>
#include <type_traits>

#include "kernels/conv/cuda_gemm_conv.h"
#include "kernels/device/cuda/block.h"
#include "kernels/device/cuda/cuda_op.h"
#include "kernels/device/cuda/pack.h"
#include "kernels/op_args.h"

namespace dp::kernels::cuda {
namespace {

struct DirectConv {
  Strides x, w, y;  // in w: image is the output channel, row and col are the cell of the window
  int batch, channels, height, width;
  int out_channels, out_height, out_width;
  int inputs, outputs;  // channels of a group
  HW kernel, stride, padding, dilation;
  int bias, relu, unused;  // `unused` fills the last eight bytes

  __device__ int group_of_output(int channel) const { return channel / outputs; }
  __device__ int group_of_input(int channel) const { return channel / inputs; }
};
// Passed to kernels byte by byte, so there must be no padding: its bytes would be indeterminate.
static_assert(std::has_unique_object_representations_v<DirectConv>);

DirectConv direct(const TensorDesc& x, const TensorDesc& w, const TensorDesc& y, const Window& window,
                  bool bias = false, bool relu = false) {
  require_countable(x, w, y);
  const auto size = [](const TensorDesc& tensor, int axis) { return static_cast<int>(tensor.shape[axis]); };
  return {.x = strides_of(x),
          .w = strides_of(w),
          .y = strides_of(y),
          .batch = size(x, 0),
          .channels = size(x, 1),
          .height = size(x, 2),
          .width = size(x, 3),
          .out_channels = size(y, 1),
          .out_height = size(y, 2),
          .out_width = size(y, 3),
          .inputs = size(w, 1),
          .outputs = static_cast<int>(y.shape[1] / groups_of(x, w)),
          .kernel = window.kernel,
          .stride = window.stride,
          .padding = window.padding,
          .dilation = window.dilation,
          .bias = bias,
          .relu = relu,
          .unused = 0};
}

constexpr int kThreads = 256;

// An element of a tensor, numbered with the channels innermost.
struct Element {
  int image, row, col, channel;

  __device__ Element(long long number, int channels, int height, int width) {
    channel = static_cast<int>(number % channels);
    const long long cell = number / channels;
    col = static_cast<int>(cell % width);
    const long long line = cell / width;
    row = static_cast<int>(line % height);
    image = static_cast<int>(line / height);
  }
};

// A thread for each element of y.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    direct_forward_kernel(const T* x, const T* w, const float* bias, T* y, DirectConv c) {
  const long long number = static_cast<long long>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (number >= static_cast<long long>(c.batch) * c.out_height * c.out_width * c.out_channels) return;
  const Element at(number, c.out_channels, c.out_height, c.out_width);
  const int first = c.group_of_output(at.channel) * c.inputs;
  const T* const weights = w + at.channel * c.w.image;
  float sum = 0;
  for (int i = 0; i < c.kernel.h; ++i) {
    const int row = at.row * c.stride.h - c.padding.h + i * c.dilation.h;
    if (row < 0 || row >= c.height) continue;
    for (int j = 0; j < c.kernel.w; ++j) {
      const int col = at.col * c.stride.w - c.padding.w + j * c.dilation.w;
      if (col < 0 || col >= c.width) continue;
      const T* const cell = x + c.x.of_cell(at.image, row, col) + first * c.x.channel;
      const T* const tap = weights + i * c.w.row + j * c.w.col;
      for (int k = 0; k < c.inputs; ++k)
        sum = fmaf(to_float(cell[k * c.x.channel]), to_float(tap[k * c.w.channel]), sum);
    }
  }
  if (c.bias) sum += bias[at.channel];
  if (c.relu && sum < 0) sum = 0;  // lets NaN through
  y[c.y.of_cell(at.image, at.row, at.col) + at.channel * c.y.channel] = from_float<T>(sum);
}

// A thread for each element of dx.
template <typename T>
__global__ void __launch_bounds__(kThreads) direct_data_kernel(const T* dy, const T* w, T* dx, DirectConv c) {
  const long long number = static_cast<long long>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (number >= static_cast<long long>(c.batch) * c.height * c.width * c.channels) return;
  const Element at(number, c.channels, c.height, c.width);
  const int group = c.group_of_input(at.channel), first = group * c.outputs;
  const T* const weights = w + first * c.w.image + (at.channel - group * c.inputs) * c.w.channel;
  float sum = 0;
  for (int i = 0; i < c.kernel.h; ++i) {
    const int down = at.row + c.padding.h - i * c.dilation.h, row = down / c.stride.h;
    if (down < 0 || down % c.stride.h != 0 || row >= c.out_height) continue;
    for (int j = 0; j < c.kernel.w; ++j) {
      const int across = at.col + c.padding.w - j * c.dilation.w, col = across / c.stride.w;
      if (across < 0 || across % c.stride.w != 0 || col >= c.out_width) continue;
      const T* const cell = dy + c.y.of_cell(at.image, row, col) + first * c.y.channel;
      const T* const tap = weights + i * c.w.row + j * c.w.col;
      for (int k = 0; k < c.outputs; ++k)
        sum = fmaf(to_float(cell[k * c.y.channel]), to_float(tap[k * c.w.image]), sum);
    }
  }
  dx[c.x.of_cell(at.image, at.row, at.col) + at.channel * c.x.channel] = from_float<T>(sum);
}

// A thread for each weight and chunk of cells of dy; output channels are innermost. blockIdx: weights, chunk. Chunk k
// writes its sums to partials + k * (number of weights).
template <typename T>
__global__ void __launch_bounds__(kThreads)
    direct_weights_kernel(const T* x, const T* dy, float* partials, DirectConv c, int chunk) {
  const int number = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const int weights = c.kernel.h * c.kernel.w * c.inputs * c.out_channels;
  if (number >= weights) return;
  const int out = number % c.out_channels, in = number / c.out_channels % c.inputs;
  const int tap = number / c.out_channels / c.inputs, i = tap / c.kernel.w, j = tap % c.kernel.w;
  const T* const from = x + (c.group_of_output(out) * c.inputs + in) * c.x.channel;
  const T* const gradient = dy + out * c.y.channel;
  const int cells = c.batch * c.out_height * c.out_width;
  const int begin = static_cast<int>(blockIdx.y) * chunk, end = min(cells, begin + chunk);
  float sum = 0;
  for (int cell = begin; cell < end; ++cell) {
    const int line = cell / c.out_width, image = line / c.out_height;
    const int h = line - image * c.out_height, v = cell - line * c.out_width;
    const int row = h * c.stride.h - c.padding.h + i * c.dilation.h;
    const int col = v * c.stride.w - c.padding.w + j * c.dilation.w;
    if (row < 0 || row >= c.height || col < 0 || col >= c.width) continue;
    sum = fmaf(to_float(from[c.x.of_cell(image, row, col)]), to_float(gradient[c.y.of_cell(image, h, v)]), sum);
  }
  partials[static_cast<long long>(blockIdx.y) * weights + number] = sum;
}

// Adds the chunks' sums in their order. A thread for each weight.
__global__ void __launch_bounds__(kThreads)
    direct_weights_end_kernel(const float* partials, float* dw, DirectConv c, int chunks) {
  const int number = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const int weights = c.kernel.h * c.kernel.w * c.inputs * c.out_channels;
  if (number >= weights) return;
  float sum = 0;
  for (int k = 0; k < chunks; ++k) sum += partials[static_cast<long long>(k) * weights + number];
  const int out = number % c.out_channels, in = number / c.out_channels % c.inputs;
  const int tap = number / c.out_channels / c.inputs;
  dw[out * c.w.image + in * c.w.channel + tap / c.kernel.w * c.w.row + tap % c.kernel.w * c.w.col] = sum;
}

class DirectForwardOp final : public CudaOp {
 public:
  explicit DirectForwardOp(const Conv2dForward& d)
      : conv_(direct(d.x, d.w, d.y, d.window, d.bias, d.relu)), type_(d.x.type), count_(d.y.shape.numel()) {
    tensors_ = {d.x, d.w, d.y};
  }
  std::string implementation() const override { return "own:direct"; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    if (count_ == 0) return;
    const auto args = args_of<Conv2dForward>(pointers);
    in_type(type_, [&]<typename T>() {
      launch({"conv2d_forward", dim3(blocks_for(count_, kThreads)), dim3(kThreads), stream}, direct_forward_kernel<T>,
             static_cast<const T*>(args.x), static_cast<const T*>(args.w), in(args.b), static_cast<T*>(args.y), conv_);
    });
  }

 private:
  DirectConv conv_;
  DType type_;
  std::int64_t count_;
};

class DirectDataOp final : public CudaOp {
 public:
  explicit DirectDataOp(const Conv2dBackwardData& d)
      : conv_(direct(d.dx, d.w, d.dy, d.window)), type_(d.dx.type), count_(d.dx.shape.numel()) {
    tensors_ = {d.dy, d.w, d.dx};
  }
  std::string implementation() const override { return "own:direct"; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    if (count_ == 0) return;
    const auto args = args_of<Conv2dBackwardData>(pointers);
    in_type(type_, [&]<typename T>() {
      launch({"conv2d_backward_data", dim3(blocks_for(count_, kThreads)), dim3(kThreads), stream},
             direct_data_kernel<T>, static_cast<const T*>(args.dy), static_cast<const T*>(args.w),
             static_cast<T*>(args.dx), conv_);
    });
  }

 private:
  DirectConv conv_;
  DType type_;
  std::int64_t count_;
};

class DirectWeightsOp final : public CudaOp {
 public:
  explicit DirectWeightsOp(const Conv2dBackwardWeights& d)
      : conv_(direct(d.x, d.dw, d.dy, d.window)), type_(d.x.type), weights_(static_cast<int>(d.dw.shape.numel())) {
    tensors_ = {d.x, d.dy, d.dw};
    // Chunks of at least kLeastCells cells, as many as fill a large GPU.
    constexpr int kLeastCells = 64, kAllThreads = 1 << 18;
    const int cells = conv_.batch * conv_.out_height * conv_.out_width;
    chunks_ = std::clamp(std::min(cells / kLeastCells, kAllThreads / std::max(weights_, 1)), 1, 1024);
    chunk_ = std::max((cells + chunks_ - 1) / chunks_, 1);
    if (d.bias) bias_.emplace(d.dy.type, dense_geometry(d.dy));
  }
  std::size_t workspace_bytes() const override {
    const std::size_t own = static_cast<std::size_t>(chunks_) * static_cast<std::size_t>(weights_) * sizeof(float);
    return std::max(own, bias_ ? bias_->workspace_bytes() : 0);
  }
  std::string implementation() const override { return "own:direct"; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<Conv2dBackwardWeights>(pointers);
    const unsigned blocks = blocks_for(weights_, kThreads);
    in_type(type_, [&]<typename T>() {
      launch({"conv2d_backward_weights", dim3(blocks, static_cast<unsigned>(chunks_)), dim3(kThreads), stream},
             direct_weights_kernel<T>, static_cast<const T*>(args.x), static_cast<const T*>(args.dy), out(workspace),
             conv_, chunk_);
    });
    launch({"conv2d_backward_weights", dim3(blocks), dim3(kThreads), stream}, direct_weights_end_kernel,
           static_cast<const float*>(out(workspace)), out(args.dw), conv_, chunks_);
    if (bias_) bias_->enqueue(stream, args.dy, out(args.db), out(workspace));
  }

 private:
  DirectConv conv_;
  DType type_;
  int weights_, chunks_ = 1, chunk_ = 1;
  std::optional<BiasGradient> bias_;
};

}  // namespace

std::unique_ptr<CudaOp> make_direct(const Conv2dForward& d) { return std::make_unique<DirectForwardOp>(d); }
std::unique_ptr<CudaOp> make_direct(const Conv2dBackwardData& d) { return std::make_unique<DirectDataOp>(d); }
std::unique_ptr<CudaOp> make_direct(const Conv2dBackwardWeights& d) { return std::make_unique<DirectWeightsOp>(d); }

}  // namespace dp::kernels::cuda
