// Layer normalisation: each pixel is normalised over its channels. Channels last, a warp takes a pixel; row-major, a
// thread does, so that neighbouring threads read neighbouring pixels.
#include "kernels/norm/cuda.h"
#include "kernels/op_args.h"

namespace dp::kernels::cuda {
namespace {

struct Pixels {
  unsigned count, channels, per_sample;

  template <bool kChannelsLast>
  __device__ long long place(unsigned pixel, unsigned channel) const {
    if constexpr (kChannelsLast) return static_cast<long long>(pixel) * channels + channel;
    return (static_cast<long long>(pixel / per_sample) * channels + channel) * per_sample + pixel % per_sample;
  }
};

// The threads of a pixel.
template <bool kChannelsLast>
struct PixelTeam {
  static constexpr unsigned kSize = kChannelsLast ? 32 : 1;

  __device__ static unsigned pixel() { return (blockIdx.x * kNormThreads + threadIdx.x) / kSize; }
  __device__ static unsigned lane() { return threadIdx.x % kSize; }
  // Calls body(channel) for the channels of this thread.
  template <typename Body>
  __device__ static void each(unsigned channels, const Body& body) {
    for (unsigned channel = lane(); channel < channels; channel += kSize) body(channel);
  }
  __device__ static double sum(double value) {
    if constexpr (kChannelsLast) return warp_sum(value);
    return value;
  }
};

// As PixelStats of the CPUs: (x - shift) * scale + offset.
struct PixelAffine {
  float shift, scale, offset;

  __device__ PixelAffine(double mean, double inv_std)
      : shift(static_cast<float>(mean)),
        scale(static_cast<float>(inv_std)),
        offset(static_cast<float>((static_cast<double>(shift) - mean) * inv_std)) {}
  __device__ float operator()(float x) const { return normalized(x, shift, scale, offset); }
};

template <typename T, bool kChannelsLast>
__global__ void __launch_bounds__(kNormThreads)
    layer_norm_kernel(const T* x, const float* weight, const float* bias, T* y, double* stats, Pixels pixels,
                      double eps, bool relu) {
  using Team = PixelTeam<kChannelsLast>;
  const unsigned pixel = Team::pixel();
  if (pixel >= pixels.count) return;
  const auto at = [&](unsigned channel) { return pixels.place<kChannelsLast>(pixel, channel); };
  double mean = 0, squares = 0;
  Team::each(pixels.channels, [&](unsigned channel) { mean += static_cast<double>(to_float(x[at(channel)])); });
  mean = Team::sum(mean) / pixels.channels;
  Team::each(pixels.channels, [&](unsigned channel) {
    const double away = static_cast<double>(to_float(x[at(channel)])) - mean;
    squares += away * away;
  });
  const double inv_std = 1 / sqrt(Team::sum(squares) / pixels.channels + eps);
  if (Team::lane() == 0) stats[2LL * pixel] = mean, stats[2LL * pixel + 1] = inv_std;
  const PixelAffine own(mean, inv_std);
  Team::each(pixels.channels, [&](unsigned channel) {
    float value = own(to_float(x[at(channel)]));
    if (weight != nullptr) value = fmaf(value, weight[channel], bias[channel]);
    y[at(channel)] = from_float<T>(relu ? rectified(value) : value);
  });
}

// dx = scale * (g - sum - xhat * product), where g = dy * weight; sum and product are means over the channels.
template <typename T, bool kChannelsLast>
__global__ void __launch_bounds__(kNormThreads) layer_norm_backward_kernel(const T* dy, const T* x, const float* weight,
                                                                           const double* stats, T* dx, Pixels pixels) {
  using Team = PixelTeam<kChannelsLast>;
  const unsigned pixel = Team::pixel();
  if (pixel >= pixels.count) return;
  const auto at = [&](unsigned channel) { return pixels.place<kChannelsLast>(pixel, channel); };
  const PixelAffine own(stats[2LL * pixel], stats[2LL * pixel + 1]);
  const auto gradient = [&](unsigned channel) {
    return to_float(dy[at(channel)]) * (weight == nullptr ? 1.f : weight[channel]);
  };
  double sum = 0, product = 0;
  Team::each(pixels.channels, [&](unsigned channel) {
    const double g = gradient(channel);
    sum += g;
    product += g * own(to_float(x[at(channel)]));
  });
  const auto mean_sum = static_cast<float>(Team::sum(sum) / pixels.channels),
             mean_product = static_cast<float>(Team::sum(product) / pixels.channels);
  Team::each(pixels.channels, [&](unsigned channel) {
    const float rest = gradient(channel) - mean_sum - own(to_float(x[at(channel)])) * mean_product;
    dx[at(channel)] = from_float<T>(rest * own.scale);
  });
}

// The gradients of weight and bias: sums over all pixels, which are the rows of the cut.
template <typename T, int kWidth, bool kChannelsLast>
__global__ void __launch_bounds__(kReduceThreads, kReduceResident)
    layer_norm_weights_kernel(const T* dy, const T* x, const double* stats, float* dweight, float* dbias, double* parts,
                              unsigned* counters, NormCut cut) {
  const NormSpot spot = norm_spot<kWidth, kReduceThreads>(cut, blockIdx.x);
  double sum[kWidth] = {}, product[kWidth] = {};
  for (unsigned row = spot.row; row < spot.end; row += kNormChunk * spot.step) {
    Pack<kWidth> gradients[kNormChunk], values[kNormChunk];
    load_rows<kWidth, kChannelsLast>(dy, cut, spot, row, gradients);
    load_rows<kWidth, kChannelsLast>(x, cut, spot, row, values);
    float chunk_sum[kWidth] = {}, chunk_product[kWidth] = {};
    for (unsigned i = 0; i < kNormChunk; ++i) {
      if (row + i * spot.step >= spot.end) continue;
      const double* const own = stats + 2LL * (row + i * spot.step);
      const PixelAffine hat(own[0], own[1]);
      for (int k = 0; k < kWidth; ++k) {
        chunk_sum[k] += gradients[i].v[k];
        chunk_product[k] = fmaf(gradients[i].v[k], hat(values[i].v[k]), chunk_product[k]);
      }
    }
    for (int k = 0; k < kWidth; ++k) sum[k] += chunk_sum[k], product[k] += chunk_product[k];
  }
  reduce_rows(sum, product, parts, counters, cut, spot, [&](unsigned channel, double all, double products) {
    dbias[channel] = static_cast<float>(all);
    dweight[channel] = static_cast<float>(products);
  });
}

// Calls run.operator()<T, kChannelsLast>(pixels, blocks) unless x is empty.
template <typename Run>
void over_pixels(const TensorDesc& x, const Run& run) {
  const unsigned channels = static_cast<unsigned>(x.shape[1]), count = index_count(x) / channels;
  if (count == 0) return;
  const Pixels pixels{count, channels, static_cast<unsigned>(x.shape[2] * x.shape[3])};
  in_type(x.type, [&]<typename T>() {
    if (is_channels_last(x)) return run.template operator()<T, true>(pixels, blocks_for(count, kNormThreads / 32));
    run.template operator()<T, false>(pixels, blocks_for(count, kNormThreads));
  });
}

class LayerNormForwardOp final : public CudaOp {
 public:
  explicit LayerNormForwardOp(const GroupNormForward& desc) : eps_(desc.eps), affine_(desc.affine), relu_(desc.relu) {
    tensors_ = {resolved_channels_last(desc.x)};
  }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<GroupNormForward>(pointers);
    over_pixels(tensors_[0], [&]<typename T, bool kChannelsLast>(const Pixels& pixels, unsigned blocks) {
      launch({"layer_norm", dim3(blocks), dim3(kNormThreads), stream}, layer_norm_kernel<T, kChannelsLast>, args.x,
             affine_ ? args.weight : nullptr, affine_ ? args.bias : nullptr, args.y, args.stats, pixels, eps_, relu_);
    });
  }

 private:
  double eps_;
  bool affine_, relu_;
};

class LayerNormBackwardOp final : public NormOp {
 public:
  explicit LayerNormBackwardOp(const GroupNormBackward& desc)
      : NormOp(desc.x, 4, {kReduceThreads, kNormChunk, kReduceBlocks, kReducedChannels}),
        affine_(desc.affine),
        counters_(zeroed_counters(most_tiles())) {}
  std::size_t workspace_bytes() const override { return parts_bytes(); }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<GroupNormBackward>(pointers);
    // Before dx, which may be dy.
    if (affine_)
      over_values(take_packs(args.dy, args.x), [&]<typename T, int kWidth, bool kChannelsLast>(const NormCut& cut) {
        launch(over_parts("layer_norm_weights", cut, stream, kReduceThreads),
               layer_norm_weights_kernel<T, kWidth, kChannelsLast>, args.dy, args.x, args.stats, args.dweight,
               args.dbias, workspace, counters_.get(), cut);
      });
    over_pixels(tensors_[0], [&]<typename T, bool kChannelsLast>(const Pixels& pixels, unsigned blocks) {
      launch({"layer_norm_backward", dim3(blocks), dim3(kNormThreads), stream},
             layer_norm_backward_kernel<T, kChannelsLast>, args.dy, args.x, affine_ ? args.weight : nullptr, args.stats,
             args.dx, pixels);
    });
  }

 private:
  bool affine_;
  DeviceMemory counters_;  // one per tile of channels
};

}  // namespace

std::unique_ptr<CudaOp> make_pixelwise(const GroupNormForward& desc) {
  return std::make_unique<LayerNormForwardOp>(desc);
}
std::unique_ptr<CudaOp> make_pixelwise(const GroupNormBackward& desc) {
  return std::make_unique<LayerNormBackwardOp>(desc);
}

}  // namespace dp::kernels::cuda
