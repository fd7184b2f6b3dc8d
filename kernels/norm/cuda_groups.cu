// Group normalisation (layer normalisation: cuda_pixels.cu). The first kernel reduces each channel of each sample. The
// second kernel adds the channels of each group and computes the result.
#include <algorithm>

#include "kernels/norm/cuda.h"
#include "kernels/op_args.h"

namespace dp::kernels::cuda {
namespace {

constexpr unsigned kBlocks = 4096;  // of an affine kernel; more if there are more samples

// The division of a tensor of N samples. `cut` divides one sample; block b processes sample b / (tiles * parts).
struct Groups {
  NormCut cut;
  unsigned each;  // channels of a group

  __device__ unsigned sample() const { return blockIdx.x / (cut.tiles * cut.parts); }
  __device__ unsigned block() const { return blockIdx.x % (cut.tiles * cut.parts); }
  __device__ long long first_element() const { return static_cast<long long>(sample()) * cut.rows * cut.channels; }
  __device__ long long first_channel() const { return static_cast<long long>(sample()) * cut.channels; }
  __device__ long long first_group() const { return static_cast<long long>(sample()) * (cut.channels / each); }
  __device__ double count() const { return static_cast<double>(each) * cut.rows; }  // values of a group
};

// Calls visit(i, k) for each row i of a chunk that exists and each channel k of a pack.
template <int kWidth, typename Visit>
__device__ __forceinline__ void each_row(const NormSpot& spot, unsigned row, const Visit& visit) {
  for (unsigned i = 0; i < kNormChunk; ++i)
    if (row + i * spot.step < spot.end)
      for (int k = 0; k < kWidth; ++k) visit(i, k);
}

// Computes each channel's mean and sum of squared deviations. It sums the deviations from the channel's first value, so
// that a large mean costs no precision.
template <typename T, int kWidth, bool kChannelsLast>
__global__ void __launch_bounds__(kReduceThreads, kReduceResident)
    group_moments_kernel(const T* x, double* moments, double* parts, unsigned* counters, Groups groups) {
  const NormCut& cut = groups.cut;
  const NormSpot spot = norm_spot<kWidth, kReduceThreads>(cut, groups.block());
  x += groups.first_element();
  Pack<kWidth> pivot{};
  if (spot.channel < cut.channels) pivot = load_pack<kWidth>(x + norm_place<kChannelsLast>(cut, spot.channel, 0));
  double sum[kWidth] = {}, square[kWidth] = {};
  for (unsigned row = spot.row; row < spot.end; row += kNormChunk * spot.step) {
    Pack<kWidth> values[kNormChunk];
    load_rows<kWidth, kChannelsLast>(x, cut, spot, row, values);
    float chunk_sum[kWidth] = {}, chunk_square[kWidth] = {};
    each_row<kWidth>(spot, row, [&](unsigned i, int k) {
      const float away = values[i].v[k] - pivot.v[k];
      chunk_sum[k] += away;
      chunk_square[k] = fmaf(away, away, chunk_square[k]);
    });
    for (int k = 0; k < kWidth; ++k) sum[k] += chunk_sum[k], square[k] += chunk_square[k];
  }
  reduce_rows(sum, square, parts + 2 * cut.parts * groups.first_channel(), counters + groups.sample() * cut.tiles, cut,
              spot, [&](unsigned channel, double all, double squares) {
                const double away = all / cut.rows;
                double* const to = moments + 2 * (groups.first_channel() + channel);
                to[0] = static_cast<double>(load_pack<1>(x + norm_place<kChannelsLast>(cut, channel, 0)).v[0]) + away;
                to[1] = squares - all * away;
              });
}

// Computes each channel's sums of dy and dy * xhat.
template <typename T, int kWidth, bool kChannelsLast>
__global__ void __launch_bounds__(kReduceThreads, kReduceResident)
    group_sums_kernel(const T* dy, const T* x, const double* stats, double* sums, double* parts, unsigned* counters,
                      Groups groups) {
  const NormCut& cut = groups.cut;
  const NormSpot spot = norm_spot<kWidth, kReduceThreads>(cut, groups.block());
  dy += groups.first_element(), x += groups.first_element();
  stats += 2 * groups.first_group();
  Pack<kWidth> shift{};
  if (spot.channel < cut.channels)
    for (int k = 0; k < kWidth; ++k) shift.v[k] = static_cast<float>(stats[2 * ((spot.channel + k) / groups.each)]);
  double sum[kWidth] = {}, product[kWidth] = {};
  for (unsigned row = spot.row; row < spot.end; row += kNormChunk * spot.step) {
    Pack<kWidth> gradients[kNormChunk], values[kNormChunk];
    load_rows<kWidth, kChannelsLast>(dy, cut, spot, row, gradients);
    load_rows<kWidth, kChannelsLast>(x, cut, spot, row, values);
    float chunk_sum[kWidth] = {}, chunk_product[kWidth] = {};
    each_row<kWidth>(spot, row, [&](unsigned i, int k) {
      chunk_sum[k] += gradients[i].v[k];
      chunk_product[k] = fmaf(gradients[i].v[k], values[i].v[k] - shift.v[k], chunk_product[k]);
    });
    for (int k = 0; k < kWidth; ++k) sum[k] += chunk_sum[k], product[k] += chunk_product[k];
  }
  reduce_rows(sum, product, parts + 2 * cut.parts * groups.first_channel(), counters + groups.sample() * cut.tiles, cut,
              spot, [&](unsigned channel, double all, double products) {
                const double mean = stats[2 * (channel / groups.each)],
                             inv_std = stats[2 * (channel / groups.each) + 1];
                double* const to = sums + 2 * (groups.first_channel() + channel);
                to[0] = all;
                to[1] = (products - (mean - static_cast<double>(static_cast<float>(mean))) * all) * inv_std;
              });
}

// For each group that has channels of this block, one warp calls add(group, slot). Slots count these groups from 0.
template <int kWidth, typename Add>
__device__ __forceinline__ void each_group(const Groups& groups, const Add& add) {
  const NormCut& cut = groups.cut;
  const unsigned width = cut.lanes * kWidth, begin = blockIdx.x % cut.tiles * width,
                 end = min(begin + width, cut.channels);
  for (unsigned group = begin / groups.each + threadIdx.x / 32; group * groups.each < end; group += kNormThreads / 32)
    add(group, group - begin / groups.each);
}
template <int kWidth>
__device__ __forceinline__ unsigned slot_of(const Groups& groups, unsigned channel) {
  return channel / groups.each - blockIdx.x % groups.cut.tiles * groups.cut.lanes * kWidth / groups.each;
}

// `moments`: of each channel. The block that has the first channel of a group writes its stats.
template <typename T, int kWidth, bool kChannelsLast>
__global__ void __launch_bounds__(kNormThreads)
    group_forward_kernel(const T* x, const double* moments, const float* weight, const float* bias, T* y, double* stats,
                         Groups groups, double eps, bool relu) {
  DP_SHARED(double, means, [kNormChannels]);
  DP_SHARED(double, inv_stds, [kNormChannels]);
  DP_SHARED(float, shifts, [kNormChannels]);
  DP_SHARED(float, scales, [kNormChannels]);
  DP_SHARED(float, offsets, [kNormChannels]);
  const NormCut& cut = groups.cut;
  const NormSpot spot = norm_spot<kWidth>(cut, groups.block());
  x += groups.first_element(), y += groups.first_element();
  moments += 2 * groups.first_channel(), stats += 2 * groups.first_group();
  const unsigned lane = threadIdx.x % 32;
  each_group<kWidth>(groups, [&](unsigned group, unsigned slot) {
    double mean = 0, squares = 0;
    for (unsigned c = lane; c < groups.each; c += 32) mean += moments[2 * (group * groups.each + c)];
    mean = warp_sum(mean) / groups.each;
    for (unsigned c = lane; c < groups.each; c += 32) {
      const double* const own = moments + 2 * (group * groups.each + c);
      squares += own[1] + cut.rows * (own[0] - mean) * (own[0] - mean);
    }
    const double inv_std = 1 / sqrt(warp_sum(squares) / groups.count() + eps);
    if (lane != 0) return;
    means[slot] = mean, inv_stds[slot] = inv_std;
    const bool begins_here = group * groups.each >= blockIdx.x % cut.tiles * cut.lanes * kWidth;
    if (spot.part == 0 && begins_here) stats[2 * group] = mean, stats[2 * group + 1] = inv_std;
  });
  __syncthreads();
  each_channel<kWidth>(cut, [&](unsigned channel, unsigned slot) {
    const unsigned group = slot_of<kWidth>(groups, channel);
    const double mean = means[group], scale = weight == nullptr ? inv_stds[group] : weight[channel] * inv_stds[group];
    shifts[slot] = static_cast<float>(mean);
    scales[slot] = static_cast<float>(scale);
    offsets[slot] = static_cast<float>((static_cast<double>(shifts[slot]) - mean) * scale +
                                       (bias == nullptr ? 0.0 : static_cast<double>(bias[channel])));
  });
  __syncthreads();
  const Pack<kWidth> shift = own_numbers<kWidth>(shifts, cut), scale = own_numbers<kWidth>(scales, cut),
                     offset = own_numbers<kWidth>(offsets, cut);
  for (unsigned row = spot.row; row < spot.end; row += kNormChunk * spot.step) {
    Pack<kWidth> values[kNormChunk];
    load_rows<kWidth, kChannelsLast>(x, cut, spot, row, values);
    for (int i = 0; i < kNormChunk; ++i)
      for (int k = 0; k < kWidth; ++k) {
        const float value = normalized(values[i].v[k], shift.v[k], scale.v[k], offset.v[k]);
        values[i].v[k] = relu ? rectified(value) : value;
      }
    store_rows<kWidth, kChannelsLast>(y, cut, spot, row, values);
  }
}

// dx = dy * scale + (x - shift) * slope + offset. `sums`: of each channel.
template <typename T, int kWidth, bool kChannelsLast>
__global__ void __launch_bounds__(kNormThreads)
    group_backward_kernel(const T* dy, const T* x, const float* weight, const double* stats, const double* sums, T* dx,
                          Groups groups) {
  DP_SHARED(double, all_sums, [kNormChannels]);
  DP_SHARED(double, all_products, [kNormChannels]);
  DP_SHARED(float, shifts, [kNormChannels]);
  DP_SHARED(float, scales, [kNormChannels]);
  DP_SHARED(float, slopes, [kNormChannels]);
  DP_SHARED(float, offsets, [kNormChannels]);
  const NormCut& cut = groups.cut;
  const NormSpot spot = norm_spot<kWidth>(cut, groups.block());
  dy += groups.first_element(), x += groups.first_element(), dx += groups.first_element();
  sums += 2 * groups.first_channel(), stats += 2 * groups.first_group();
  const unsigned lane = threadIdx.x % 32;
  each_group<kWidth>(groups, [&](unsigned group, unsigned slot) {
    double sum = 0, product = 0;
    for (unsigned c = lane; c < groups.each; c += 32) {
      const unsigned channel = group * groups.each + c;
      const double factor = weight == nullptr ? 1.0 : static_cast<double>(weight[channel]);
      sum += factor * sums[2 * channel];
      product += factor * sums[2 * channel + 1];
    }
    sum = warp_sum(sum), product = warp_sum(product);
    if (lane == 0) all_sums[slot] = sum, all_products[slot] = product;
  });
  __syncthreads();
  each_channel<kWidth>(cut, [&](unsigned channel, unsigned slot) {
    const unsigned own = slot_of<kWidth>(groups, channel);
    const double mean = stats[2 * (channel / groups.each)], inv_std = stats[2 * (channel / groups.each) + 1];
    const double slope = -inv_std * inv_std * all_products[own] / groups.count();
    shifts[slot] = static_cast<float>(mean);
    scales[slot] = static_cast<float>(weight == nullptr ? inv_std : weight[channel] * inv_std);
    slopes[slot] = static_cast<float>(slope);
    offsets[slot] = static_cast<float>(-inv_std * all_sums[own] / groups.count() -
                                       (mean - static_cast<double>(shifts[slot])) * slope);
  });
  __syncthreads();
  const Pack<kWidth> shift = own_numbers<kWidth>(shifts, cut), scale = own_numbers<kWidth>(scales, cut),
                     slope = own_numbers<kWidth>(slopes, cut), offset = own_numbers<kWidth>(offsets, cut);
  for (unsigned row = spot.row; row < spot.end; row += kNormChunk * spot.step) {
    Pack<kWidth> gradients[kNormChunk], values[kNormChunk];
    load_rows<kWidth, kChannelsLast>(dy, cut, spot, row, gradients);
    load_rows<kWidth, kChannelsLast>(x, cut, spot, row, values);
    for (int i = 0; i < kNormChunk; ++i)
      for (int k = 0; k < kWidth; ++k)
        gradients[i].v[k] =
            fmaf(gradients[i].v[k], scale.v[k], fmaf(values[i].v[k] - shift.v[k], slope.v[k], offset.v[k]));
    store_rows<kWidth, kChannelsLast>(dx, cut, spot, row, gradients);
  }
}

// Adds the sums of all samples in order. Each thread adds those of one channel.
__global__ void __launch_bounds__(kNormThreads)
    group_weights_kernel(const double* sums, float* dweight, float* dbias, unsigned samples, unsigned channels) {
  const unsigned channel = blockIdx.x * kNormThreads + threadIdx.x;
  if (channel >= channels) return;
  double sum = 0, product = 0;
  for (unsigned n = 0; n < samples; ++n) {
    const double* const own = sums + 2 * (static_cast<long long>(n) * channels + channel);
    sum += own[0], product += own[1];
  }
  dweight[channel] = static_cast<float>(product);
  dbias[channel] = static_cast<float>(sum);
}

TensorDesc sample_of(const TensorDesc& x) {
  TensorDesc one{x.shape.with_dim(0, 1), x.type, {}};
  one.layout = is_channels_last(x) ? channels_last(one.shape, one.type) : plain(one.shape, one.type);
  return one;
}

// Base of both ops: a reduction of each channel, then an affine pass. Reductions use fewer and larger blocks.
class GroupOp : public CudaOp {
 public:
  GroupOp(const TensorDesc& x, std::int64_t groups) {
    tensors_ = {resolved_channels_last(x)};
    const TensorDesc one = sample_of(tensors_[0]);
    samples_ = static_cast<unsigned>(x.shape[0]);
    each_ = static_cast<unsigned>(x.shape[1] / groups);
    channels_last_ = is_channels_last(tensors_[0]);
    const auto share = [&](unsigned blocks) { return std::max(1u, blocks / std::max(1u, samples_)); };
    for (const bool packs : {false, true}) {
      const unsigned width = packs ? 4 : 1;
      reductions_[packs] = cut_norm(one, width, {kReduceThreads, kNormChunk, share(kReduceBlocks), kReducedChannels});
      passes_[packs] = cut_norm(one, width, {kNormThreads, kNormChunk, share(kBlocks), kNormChannels});
    }
    counters_ = zeroed_counters(samples_ * std::max(reductions_[0].tiles, reductions_[1].tiles));
  }
  // Two doubles per sample and channel, then as many for each part of a reduction.
  std::size_t workspace_bytes() const override {
    return sums_count() * (1 + std::max(reductions_[0].parts, reductions_[1].parts)) * sizeof(double);
  }

 protected:
  std::size_t sums_count() const { return std::size_t{2} * samples_ * passes_[0].channels; }
  bool is_empty() const { return samples_ == 0 || passes_[0].rows == 0; }

  // Calls run.operator()<T, kWidth, kChannelsLast>(reduction, pass).
  template <typename Run>
  void over_values(bool aligned, const Run& run) const {
    const bool packs = channels_last_ && passes_[0].channels % 4 == 0 && aligned;
    const Groups reduction{reductions_[packs], each_}, pass{passes_[packs], each_};
    in_type(tensors_[0].type, [&]<typename T>() {
      if (packs) return run.template operator()<T, 4, true>(reduction, pass);
      return channels_last_ ? run.template operator()<T, 1, true>(reduction, pass)
                            : run.template operator()<T, 1, false>(reduction, pass);
    });
  }
  Launch over_samples(const char* kernel, const NormCut& cut, cudaStream_t stream, unsigned threads) const {
    return {kernel, dim3(samples_ * cut.tiles * cut.parts), dim3(threads), stream};
  }

  unsigned samples_ = 0, each_ = 1;
  DeviceMemory counters_;  // one per sample and tile of channels of a reduction

 private:
  bool channels_last_ = false;
  NormCut reductions_[2], passes_[2];  // for single elements, for packs
};

class GroupForwardOp final : public GroupOp {
 public:
  explicit GroupForwardOp(const GroupNormForward& desc)
      : GroupOp(desc.x, desc.groups), eps_(desc.eps), affine_(desc.affine), relu_(desc.relu) {}

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<GroupNormForward>(pointers);
    if (is_empty()) return;
    double* const moments = static_cast<double*>(workspace);
    over_values(take_packs(args.x, args.y), [&]<typename T, int kWidth, bool kChannelsLast>(const Groups& reduction,
                                                                                            const Groups& pass) {
      launch(over_samples("group_norm_moments", reduction.cut, stream, kReduceThreads),
             group_moments_kernel<T, kWidth, kChannelsLast>, args.x, moments, moments + sums_count(), counters_.get(),
             reduction);
      launch(over_samples("group_norm_forward", pass.cut, stream, kNormThreads),
             group_forward_kernel<T, kWidth, kChannelsLast>, args.x, moments, affine_ ? args.weight : nullptr,
             affine_ ? args.bias : nullptr, args.y, args.stats, pass, eps_, relu_);
    });
  }

 private:
  double eps_;
  bool affine_, relu_;
};

class GroupBackwardOp final : public GroupOp {
 public:
  explicit GroupBackwardOp(const GroupNormBackward& desc) : GroupOp(desc.x, desc.groups), affine_(desc.affine) {}

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<GroupNormBackward>(pointers);
    double* const sums = static_cast<double*>(workspace);
    if (!is_empty())
      over_values(take_packs(args.dy, args.x, args.dx),
                  [&]<typename T, int kWidth, bool kChannelsLast>(const Groups& reduction, const Groups& pass) {
                    launch(over_samples("group_norm_sums", reduction.cut, stream, kReduceThreads),
                           group_sums_kernel<T, kWidth, kChannelsLast>, args.dy, args.x, args.stats, sums,
                           sums + sums_count(), counters_.get(), reduction);
                    launch(over_samples("group_norm_backward", pass.cut, stream, kNormThreads),
                           group_backward_kernel<T, kWidth, kChannelsLast>, args.dy, args.x,
                           affine_ ? args.weight : nullptr, args.stats, sums, args.dx, pass);
                  });
    const unsigned channels = static_cast<unsigned>(tensors_[0].shape[1]);
    if (affine_)
      launch({"group_norm_weights", dim3(blocks_for(channels, kNormThreads)), dim3(kNormThreads), stream},
             group_weights_kernel, sums, args.dweight, args.dbias, is_empty() ? 0u : samples_, channels);
  }

 private:
  bool affine_;
};

}  // namespace

std::unique_ptr<CudaOp> make(const GroupNormForward& desc, const CudaOpOptions&) {
  return desc.groups == kEachPixel ? make_pixelwise(desc) : std::make_unique<GroupForwardOp>(desc);
}
std::unique_ptr<CudaOp> make(const GroupNormBackward& desc, const CudaOpOptions&) {
  return desc.groups == kEachPixel ? make_pixelwise(desc) : std::make_unique<GroupBackwardOp>(desc);
}

}  // namespace dp::kernels::cuda
