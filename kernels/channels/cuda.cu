// Ops along the channels on GPUs.
#include <algorithm>

#include "kernels/device/cuda/block.h"
#include "kernels/device/cuda/cuda_op.h"
#include "kernels/device/cuda/pack.h"
#include "kernels/op_args.h"

namespace dp::kernels::cuda {
namespace {

constexpr unsigned kThreads = 256, kWarps = kThreads / 32;

// The memory order of a tensor. `last`: the channels of a pixel are contiguous.
struct Channels {
  unsigned samples, channels, pixels, last;
};

class ChannelsOp : public CudaOp {
 protected:
  explicit ChannelsOp(const TensorDesc& x) {
    tensors_ = {resolved_channels_last(x)};
    count_ = index_count(tensors_[0]);
    const auto size = [&](int axis) { return static_cast<unsigned>(x.shape[axis]); };
    const unsigned pixels = x.shape.rank() == 4 ? size(2) * size(3) : 1;
    order_ = {size(0), size(1), pixels, pixels == 1 || order_of(tensors_[0]).channels_last};
  }
  // Whether a thread takes four contiguous elements: of one pixel, or of one channel.
  bool packs(bool aligned) const { return aligned && (order_.last ? order_.channels : order_.pixels) % 4 == 0; }

  Channels order_;
  unsigned count_;
};

// ChannelwiseForward.

// `shared`: one number for all channels. `packs`: number of packs of y.
template <int kWidth, typename T>
__global__ void __launch_bounds__(kThreads) channelwise_forward_kernel(const T* x, const float* w, T* y, unsigned packs,
                                                                       Channels order, bool shared, bool prelu) {
  const unsigned index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= packs) return;
  const unsigned at = index * kWidth;
  const unsigned channel = shared ? 0 : order.last ? at % order.channels : at / order.pixels % order.channels;
  Pack<kWidth> values = load_pack<kWidth>(x + at);
  for (int k = 0; k < kWidth; ++k) {
    const float number = w[channel + (order.last && !shared ? k : 0)], value = values.v[k];
    values.v[k] = !prelu ? value + number : value > 0 ? value : value * number;
  }
  store_pack(y + at, values);
}

class ChannelwiseForwardOp final : public ChannelsOp {
 public:
  explicit ChannelwiseForwardOp(const ChannelwiseForward& desc)
      : ChannelsOp(desc.x), shared_(desc.numbers == 1), prelu_(desc.function == Channelwise::prelu) {}

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<ChannelwiseForward>(pointers);
    const bool four = packs(take_packs(args.x, args.y));
    if (count_ == 0) return;
    const unsigned count = count_ / (four ? 4 : 1);
    in_type(tensors_[0].type, [&]<typename T>() {
      launch({"channelwise_forward", dim3(blocks_for(count, kThreads)), dim3(kThreads), stream},
             four ? channelwise_forward_kernel<4, T> : channelwise_forward_kernel<1, T>, args.x, args.w, args.y, count,
             order_, shared_, prelu_);
    });
  }

 private:
  bool shared_, prelu_;
};

// ChannelwiseBackward. The first kernel writes `sums` (parts, channels), the second one adds the parts in order.

// Writes one pack of dx; adds to `sum` what it contributes to the gradient of its number, or numbers.
template <bool kPrelu, int kWidth, typename T>
__device__ __forceinline__ void channelwise_pack(const T* dy, const T* x, T* dx, long long at,
                                                 const Pack<kWidth>& numbers, Pack<kWidth>& sum) {
  Pack<kWidth> gradients = load_pack<kWidth>(dy + at);
  if constexpr (!kPrelu) {
    for (int k = 0; k < kWidth; ++k) sum.v[k] += gradients.v[k];
    return;
  }
  const Pack<kWidth> values = load_pack<kWidth>(x + at);
  for (int k = 0; k < kWidth; ++k) {
    if (values.v[k] > 0) continue;
    sum.v[k] = fmaf(gradients.v[k], values.v[k], sum.v[k]);
    gradients.v[k] *= numbers.v[k];
  }
  store_pack(dx + at, gradients);
}

// Row-major: a warp takes a channel of a sample, which is a part.
template <bool kPrelu, int kWidth, typename T>
__global__ void __launch_bounds__(kThreads) channelwise_planes_kernel(const T* dy, const T* x, const float* w, T* dx,
                                                                      float* sums, Channels order, bool shared) {
  const unsigned plane = blockIdx.x * kWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (plane >= order.samples * order.channels) return;
  Pack<kWidth> numbers{}, sum{};
  if constexpr (kPrelu)
    for (float& number : numbers.v) number = w[shared ? 0 : plane % order.channels];
  for (unsigned pixel = lane * kWidth; pixel < order.pixels; pixel += 32 * kWidth)
    channelwise_pack<kPrelu>(dy, x, dx, static_cast<long long>(plane) * order.pixels + pixel, numbers, sum);
  float all = 0;
  for (const float value : sum.v) all += value;
  all = warp_sum(all);
  if (lane == 0) sums[plane] = all;
}

// Channels last: a block takes 32 packs of channels and some of the pixels of all samples, which are a part.
struct RowCut {
  unsigned tiles, parts, rows;  // blocks along the channels and along the pixels; pixels of a block
};

template <bool kPrelu, int kWidth, typename T>
__global__ void __launch_bounds__(kThreads)
    channelwise_rows_kernel(const T* dy, const T* x, const float* w, T* dx, float* sums, Channels order, RowCut cut,
                            bool shared) {
  DP_SHARED(float, of_warps, [kWarps][32 * kWidth]);
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const unsigned channel = (blockIdx.x % cut.tiles * 32 + lane) * kWidth, part = blockIdx.x / cut.tiles;
  const unsigned end = min((part + 1) * cut.rows, order.samples * order.pixels);
  const bool has_channel = channel < order.channels;
  Pack<kWidth> numbers{}, sum{};
  if (kPrelu && has_channel)
    for (int k = 0; k < kWidth; ++k) numbers.v[k] = w[shared ? 0 : channel + k];
  for (unsigned row = part * cut.rows + warp; has_channel && row < end; row += kWarps)
    channelwise_pack<kPrelu>(dy, x, dx, static_cast<long long>(row) * order.channels + channel, numbers, sum);
  for (int k = 0; k < kWidth; ++k) of_warps[warp][lane * kWidth + k] = sum.v[k];
  __syncthreads();
  if (warp > 0 || !has_channel) return;
  for (unsigned other = 1; other < kWarps; ++other)
    for (int k = 0; k < kWidth; ++k) sum.v[k] += of_warps[other][lane * kWidth + k];
  for (int k = 0; k < kWidth; ++k) sums[static_cast<long long>(part) * order.channels + channel + k] = sum.v[k];
}

__global__ void __launch_bounds__(kThreads)
    join_channels_kernel(const float* sums, float* dw, unsigned channels, unsigned parts) {
  const unsigned channel = blockIdx.x * kThreads + threadIdx.x;
  if (channel >= channels) return;
  double sum = 0;
  for (unsigned part = 0; part < parts; ++part) sum += sums[static_cast<long long>(part) * channels + channel];
  dw[channel] = static_cast<float>(sum);
}

// One block adds all `count` sums.
__global__ void __launch_bounds__(kThreads) join_all_kernel(const float* sums, float* dw, unsigned count) {
  double sum = 0;
  for (unsigned i = threadIdx.x; i < count; i += kThreads) sum += sums[i];
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) *dw = static_cast<float>(sum);
}

class ChannelwiseBackwardOp final : public ChannelsOp {
 public:
  explicit ChannelwiseBackwardOp(const ChannelwiseBackward& desc)
      : ChannelsOp(desc.x), shared_(desc.numbers == 1), prelu_(desc.function == Channelwise::prelu) {}
  std::size_t workspace_bytes() const override {
    return std::size_t{order_.channels} * std::max(parts(1), parts(4)) * sizeof(float);
  }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<ChannelwiseBackward>(pointers);
    if (count_ == 0) return;
    const unsigned width = packs(take_packs(args.dy, args.x, args.dx)) ? 4 : 1, channels = order_.channels;
    auto* const sums = static_cast<float*>(workspace);
    in_type(tensors_[0].type, [&]<typename T>() {
      prelu_ ? add_up<true, T>(stream, args, sums, width) : add_up<false, T>(stream, args, sums, width);
    });
    if (shared_)
      return launch({"join_all", dim3(1), dim3(kThreads), stream}, join_all_kernel, sums, args.dw,
                    channels * parts(width));
    launch({"join_channels", dim3(blocks_for(channels, kThreads)), dim3(kThreads), stream}, join_channels_kernel, sums,
           args.dw, channels, parts(width));
  }

 private:
  // Enough blocks for two waves on an H100, but at least 64 pixels a part. It depends on the shape alone.
  RowCut cut(unsigned width) const {
    constexpr unsigned kBlocks = 264, kRows = 64;
    const unsigned rows = order_.samples * order_.pixels, tiles = blocks_for(order_.channels / width, 32);
    const unsigned of_part = std::max(kRows, blocks_for(rows, std::max(1u, kBlocks / tiles)));
    return {tiles, blocks_for(rows, of_part), of_part};
  }
  unsigned parts(unsigned width) const {
    if (!order_.last) return order_.samples;
    return order_.channels < width ? 0 : cut(width).parts;
  }
  template <bool kPrelu, typename T>
  void add_up(cudaStream_t stream, const Pointers<ChannelwiseBackward>& args, float* sums, unsigned width) const {
    if (order_.last) {
      const RowCut own = cut(width);
      return launch({"channelwise_rows", dim3(own.tiles * own.parts), dim3(kThreads), stream},
                    width == 4 ? channelwise_rows_kernel<kPrelu, 4, T> : channelwise_rows_kernel<kPrelu, 1, T>, args.dy,
                    args.x, args.w, args.dx, sums, order_, own, shared_);
    }
    launch({"channelwise_planes", dim3(blocks_for(order_.samples * order_.channels, kWarps)), dim3(kThreads), stream},
           width == 4 ? channelwise_planes_kernel<kPrelu, 4, T> : channelwise_planes_kernel<kPrelu, 1, T>, args.dy,
           args.x, args.w, args.dx, sums, order_, shared_);
  }

  bool shared_, prelu_;
};

// SoftmaxForward and SoftmaxBackward. Channels last, a warp takes a pixel, else a thread.

// The channels of a pixel that a thread takes: c = first, first + step, ... at `begin` + c * distance.
struct PixelChannels {
  long long begin, distance;
  unsigned first, step;
};

// The pixel of a thread; false if there is none.
template <bool kLast>
__device__ __forceinline__ bool find_pixel(const Channels& order, PixelChannels& own) {
  const unsigned pixel = blockIdx.x * (kLast ? kWarps : kThreads) + threadIdx.x / (kLast ? 32 : 1);
  if (pixel >= order.samples * order.pixels) return false;
  if constexpr (kLast)
    own = {static_cast<long long>(pixel) * order.channels, 1, threadIdx.x % 32, 32};
  else
    own = {static_cast<long long>(pixel / order.pixels) * order.channels * order.pixels + pixel % order.pixels,
           order.pixels, 0, 1};
  return true;
}

template <bool kLast, typename T>
__global__ void __launch_bounds__(kThreads) softmax_forward_kernel(const T* x, T* y, Channels order) {
  PixelChannels own;
  if (!find_pixel<kLast>(order, own)) return;
  const auto value = [&](unsigned c) { return to_float(x[own.begin + c * own.distance]); };
  float largest = -INFINITY, sum = 0;
  for (unsigned c = own.first; c < order.channels; c += own.step) largest = fmaxf(largest, value(c));
  if constexpr (kLast) largest = warp_max(largest);
  for (unsigned c = own.first; c < order.channels; c += own.step) sum += expf(value(c) - largest);
  if constexpr (kLast) sum = warp_sum(sum);
  for (unsigned c = own.first; c < order.channels; c += own.step)
    y[own.begin + c * own.distance] = from_float<T>(expf(value(c) - largest) / sum);
}

template <bool kLast, typename T>
__global__ void __launch_bounds__(kThreads) softmax_backward_kernel(const T* dy, const T* y, T* dx, Channels order) {
  PixelChannels own;
  if (!find_pixel<kLast>(order, own)) return;
  const auto at = [&](unsigned c) { return own.begin + c * own.distance; };
  float sum = 0;
  for (unsigned c = own.first; c < order.channels; c += own.step)
    sum = fmaf(to_float(dy[at(c)]), to_float(y[at(c)]), sum);
  if constexpr (kLast) sum = warp_sum(sum);
  for (unsigned c = own.first; c < order.channels; c += own.step)
    dx[at(c)] = from_float<T>(to_float(y[at(c)]) * (to_float(dy[at(c)]) - sum));
}

class SoftmaxOp : public ChannelsOp {
 protected:
  using ChannelsOp::ChannelsOp;

  Launch over_pixels(const char* kernel, cudaStream_t stream) const {
    return {kernel, dim3(blocks_for(order_.samples * order_.pixels, order_.last ? kWarps : kThreads)), dim3(kThreads),
            stream};
  }
};

class SoftmaxForwardOp final : public SoftmaxOp {
 public:
  explicit SoftmaxForwardOp(const SoftmaxForward& desc) : SoftmaxOp(desc.x) {}

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<SoftmaxForward>(pointers);
    if (count_ == 0) return;
    in_type(tensors_[0].type, [&]<typename T>() {
      launch(over_pixels("softmax_forward", stream),
             order_.last ? softmax_forward_kernel<true, T> : softmax_forward_kernel<false, T>, args.x, args.y, order_);
    });
  }
};

class SoftmaxBackwardOp final : public SoftmaxOp {
 public:
  explicit SoftmaxBackwardOp(const SoftmaxBackward& desc) : SoftmaxOp(desc.x) {}

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<SoftmaxBackward>(pointers);
    if (count_ == 0) return;
    in_type(tensors_[0].type, [&]<typename T>() {
      launch(over_pixels("softmax_backward", stream),
             order_.last ? softmax_backward_kernel<true, T> : softmax_backward_kernel<false, T>, args.dy, args.y,
             args.dx, order_);
    });
  }
};

}  // namespace

std::unique_ptr<CudaOp> make(const ChannelwiseForward& desc, const CudaOpOptions&) {
  return std::make_unique<ChannelwiseForwardOp>(desc);
}
std::unique_ptr<CudaOp> make(const ChannelwiseBackward& desc, const CudaOpOptions&) {
  return std::make_unique<ChannelwiseBackwardOp>(desc);
}
std::unique_ptr<CudaOp> make(const SoftmaxForward& desc, const CudaOpOptions&) {
  return std::make_unique<SoftmaxForwardOp>(desc);
}
std::unique_ptr<CudaOp> make(const SoftmaxBackward& desc, const CudaOpOptions&) {
  return std::make_unique<SoftmaxBackwardOp>(desc);
}

}  // namespace dp::kernels::cuda
