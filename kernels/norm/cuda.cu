// BatchNormForward and BatchNormBackward: an affine step per channel. Each block first
// computes the coefficients of its channels. The kernels subtract the float nearest to
// the mean from x; the offset accounts for the difference to the mean.
#include "kernels/norm/cuda.h"
#include "kernels/op_args.h"

namespace dp::kernels::cuda {
namespace {

// In a large tensor a thread takes several rows, which amortises the coefficients.
constexpr NormLimits kLimits{.threads = kNormThreads, .chunk = kNormChunk, .blocks = 4096, .channels = kNormChannels};

// y = x normalised, plus the addend
template <typename T, int kWidth, bool kChannelsLast, bool kAdd>
__global__ void __launch_bounds__(kNormThreads)
    forward_kernel(const T* x, const double* stats, const float* weight, const float* bias, const T* addend, T* y,
                   NormCut cut, bool relu) {
  DP_SHARED(float, shifts, [kNormChannels]);
  DP_SHARED(float, scales, [kNormChannels]);
  DP_SHARED(float, offsets, [kNormChannels]);
  each_channel<kWidth>(cut, [&](unsigned channel, unsigned slot) {
    const NormAffine own = norm_affine(stats, weight, bias, cut.channels, channel);
    shifts[slot] = own.shift, scales[slot] = own.scale, offsets[slot] = own.offset;
  });
  __syncthreads();
  const Pack<kWidth> shift = own_numbers<kWidth>(shifts, cut), scale = own_numbers<kWidth>(scales, cut),
                     offset = own_numbers<kWidth>(offsets, cut);
  const NormSpot spot = norm_spot<kWidth>(cut, blockIdx.x);
  for (unsigned row = spot.row; row < spot.end; row += kNormChunk * spot.step) {
    Pack<kWidth> values[kNormChunk], added[kNormChunk];
    load_rows<kWidth, kChannelsLast>(x, cut, spot, row, values);
    if constexpr (kAdd) load_rows<kWidth, kChannelsLast>(addend, cut, spot, row, added);
    for (int i = 0; i < kNormChunk; ++i)
      for (int k = 0; k < kWidth; ++k) {
        float value = normalized(values[i].v[k], shift.v[k], scale.v[k], offset.v[k]);
        if constexpr (kAdd) value += added[i].v[k];
        values[i].v[k] = relu ? rectified(value) : value;
      }
    store_rows<kWidth, kChannelsLast>(y, cut, spot, row, values);
  }
}

// dx = (dz - offset - (x - shift) * slope) * scale
template <typename T, int kWidth, bool kChannelsLast, bool kRelu>
__global__ void __launch_bounds__(kNormThreads)
    backward_kernel(const T* dy, const T* x, const T* y, const double* stats, const float* weight, const double* sums,
                    T* dx, NormCut cut, int parts) {
  DP_SHARED(float, shifts, [kNormChannels]);
  DP_SHARED(float, scales, [kNormChannels]);
  DP_SHARED(float, slopes, [kNormChannels]);
  DP_SHARED(float, offsets, [kNormChannels]);
  each_channel<kWidth>(cut, [&](unsigned channel, unsigned slot) {
    const ChannelStats own = channel_stats(stats, cut.channels, channel);
    double sum = 0, product = 0;
    for (int part = 0; part < parts; ++part) {
      const double* const from = sums + static_cast<long long>(part) * 2 * cut.channels + channel;
      sum += from[0];
      product += from[cut.channels];
    }
    const double per_value = own.count > 0 ? 1 / own.count : 0;  // count 0: running values, which carry no gradient
    const double slope = per_value > 0 ? own.inv_std * product * per_value : 0;
    const float shift = static_cast<float>(own.mean);
    shifts[slot] = shift;
    scales[slot] = static_cast<float>(own.inv_std * (weight ? weight[channel] : 1));
    slopes[slot] = static_cast<float>(slope);
    offsets[slot] = static_cast<float>((per_value > 0 ? sum * per_value : 0) + (shift - own.mean) * slope);
  });
  __syncthreads();
  const Pack<kWidth> shift = own_numbers<kWidth>(shifts, cut), scale = own_numbers<kWidth>(scales, cut),
                     slope = own_numbers<kWidth>(slopes, cut), offset = own_numbers<kWidth>(offsets, cut);
  const NormSpot spot = norm_spot<kWidth>(cut, blockIdx.x);
  for (unsigned row = spot.row; row < spot.end; row += kNormChunk * spot.step) {
    Pack<kWidth> gradients[kNormChunk], values[kNormChunk], outputs[kNormChunk];
    load_rows<kWidth, kChannelsLast>(dy, cut, spot, row, gradients);
    load_rows<kWidth, kChannelsLast>(x, cut, spot, row, values);
    if constexpr (kRelu) load_rows<kWidth, kChannelsLast>(y, cut, spot, row, outputs);
    for (int i = 0; i < kNormChunk; ++i)
      for (int k = 0; k < kWidth; ++k) {
        float gradient = gradients[i].v[k];
        if constexpr (kRelu) gradient = outputs[i].v[k] > 0 ? gradient : 0.f;
        const float direct = gradient - offset.v[k];
        gradients[i].v[k] = fmaf(values[i].v[k] - shift.v[k], -slope.v[k], direct) * scale.v[k];
      }
    store_rows<kWidth, kChannelsLast>(dx, cut, spot, row, gradients);
  }
}

class ForwardOp final : public NormOp {
 public:
  explicit ForwardOp(const BatchNormForward& desc) : NormOp(desc.x, 4, kLimits), relu_(desc.relu), add_(desc.add) {}

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<BatchNormForward>(pointers);
    if (is_empty()) return;
    const bool aligned = take_packs(args.x, args.addend, args.y);
    over_values(aligned, [&]<typename T, int kWidth, bool kChannelsLast>(const NormCut& cut) {
      launch(over_parts("batch_norm_forward", cut, stream),
             add_ ? forward_kernel<T, kWidth, kChannelsLast, true> : forward_kernel<T, kWidth, kChannelsLast, false>,
             args.x, args.stats, args.weight, args.bias, args.addend, args.y, cut, relu_);
    });
  }

 private:
  bool relu_, add_;
};

class BackwardOp final : public NormOp {
 public:
  explicit BackwardOp(const BatchNormBackward& desc)
      : NormOp(desc.x, 4, kLimits), relu_(desc.relu), parts_(desc.parts) {}

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<BatchNormBackward>(pointers);
    if (is_empty()) return;
    const bool aligned = take_packs(args.dz, args.x, relu_ ? args.y : nullptr, args.dx);
    over_values(aligned, [&]<typename T, int kWidth, bool kChannelsLast>(const NormCut& cut) {
      launch(over_parts("batch_norm_backward", cut, stream),
             relu_ ? backward_kernel<T, kWidth, kChannelsLast, true> : backward_kernel<T, kWidth, kChannelsLast, false>,
             args.dz, args.x, args.y, args.stats, args.weight, args.sums, args.dx, cut, parts_);
    });
  }

 private:
  bool relu_;
  int parts_;
};

}  // namespace

std::unique_ptr<CudaOp> make(const BatchNormForward& desc, const CudaOpOptions&) {
  return std::make_unique<ForwardOp>(desc);
}
std::unique_ptr<CudaOp> make(const BatchNormBackward& desc, const CudaOpOptions&) {
  return std::make_unique<BackwardOp>(desc);
}

}  // namespace dp::kernels::cuda
