// Moments, gradient sums and running statistics of batch normalisation.
#include "kernels/norm/cuda_reduce.h"

#include <algorithm>
#include <optional>

#include "device_code.h"
#include "kernels/device/cuda/cuda_op.h"
#include "kernels/device/cuda/pack.h"
#include "kernels/norm/cuda.h"
#include "kernels/op_args.h"

namespace dp::kernels::cuda {
namespace {

// BatchNormMoments in one pass (docs/decisions/0058). It sums the deviations from a pivot, and their squares. The pivot
// is the median of three values of the channel. It is close to the mean, so a large mean costs no accuracy. A thread
// sums kMomentsChunk rows in float; these partial sums are added in double.

constexpr int kMomentsChunk = 8;

template <int kWidth, bool kChannelsLast, typename T>
__device__ __forceinline__ Pack<kWidth> pivots_of(const T* x, const NormCut& cut, unsigned channel) {
  // 97 is prime, so the three rows are different pixels of their images, rarely all corners.
  const auto row = [&](unsigned part) {
    const auto at = static_cast<unsigned>(static_cast<unsigned long long>(cut.rows) * part / 97);
    return load_raw<kWidth>(x + norm_place<kChannelsLast>(cut, channel, at));
  };
  const RawPack<T, kWidth> a = row(16), b = row(48), c = row(81);
  Pack<kWidth> medians;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) medians.v[k] = fmaxf(fminf(a[k], b[k]), fminf(fmaxf(a[k], b[k]), c[k]));
  return medians;
}

// `counters`: one per tile of channels.
template <typename T, int kWidth, bool kChannelsLast>
__global__ void __launch_bounds__(kReduceThreads, kReduceResident)
    moments_kernel(const T* x, double* parts, unsigned* counters, MomentsEnd end, NormCut cut) {
  DP_SHARED(float, pivots, [kReducedChannels]);
  const NormSpot spot = norm_spot<kWidth, kReduceThreads>(cut, blockIdx.x);
  Pack<kWidth> pivot{};
  if (spot.channel < cut.channels && cut.rows > 0) pivot = pivots_of<kWidth, kChannelsLast>(x, cut, spot.channel);
  if (threadIdx.x < cut.lanes)
#pragma unroll
    for (int k = 0; k < kWidth; ++k) pivots[threadIdx.x * kWidth + k] = pivot.v[k];

  double sum[kWidth] = {}, square[kWidth] = {};
  const auto add = [&]<bool kWhole>(unsigned row) {
    RawPack<T, kWidth> values[kMomentsChunk];
#pragma unroll
    for (unsigned i = 0; i < kMomentsChunk; ++i)
      if (kWhole || row + i * spot.step < spot.end)
        values[i] = load_raw<kWidth>(x + norm_place<kChannelsLast>(cut, spot.channel, row + i * spot.step));
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      float chunk_sum = 0, chunk_square = 0;
#pragma unroll
      for (unsigned i = 0; i < kMomentsChunk; ++i) {
        const float away = kWhole || row + i * spot.step < spot.end ? values[i][k] - pivot.v[k] : 0.f;
        chunk_sum += away;
        chunk_square = fmaf(away, away, chunk_square);
      }
      sum[k] += chunk_sum;
      square[k] += chunk_square;
    }
  };
  unsigned row = spot.row;
  for (; row + (kMomentsChunk - 1) * spot.step < spot.end; row += kMomentsChunk * spot.step)
    add.template operator()<true>(row);
  if (row < spot.end) add.template operator()<false>(row);

  reduce_rows(sum, square, parts, counters, cut, spot, [&](unsigned channel, double all, double squares) {
    const double away = cut.rows > 0 ? all / cut.rows : 0;
    end.write(cut, channel, {pivots[channel % (cut.lanes * kWidth)] + away, squares - all * away});
  });
}

class MomentsOp final : public ReducingNormOp {
 public:
  explicit MomentsOp(const BatchNormMoments& desc) : ReducingNormOp(desc.x, kMomentsChunk), eps_(desc.eps) {}

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<BatchNormMoments>(pointers);
    const MomentsEnd end{static_cast<double*>(args.moments), static_cast<double*>(eps_ ? args.stats : nullptr),
                         eps_.value_or(0)};
    over_values<true>(take_packs(args.x), [&]<typename T, int kWidth, bool kChannelsLast>(const NormCut& cut) {
      launch(over_parts("batch_norm_moments", cut, stream, kReduceThreads), moments_kernel<T, kWidth, kChannelsLast>,
             args.x, workspace, counters(), end, cut);
    });
  }

 private:
  std::optional<double> eps_;
};

}  // namespace

std::unique_ptr<CudaOp> make(const BatchNormMoments& desc, const CudaOpOptions&) {
  return std::make_unique<MomentsOp>(desc);
}

// BatchNormBackwardSums in one pass: ReLU mask, sum of both gradients, dz, and the two sums over N,H,W. A thread sums
// kSumsChunk rows in float; these partial sums are added in double.

namespace {

constexpr int kSumsChunk = 4;

// `counters`: one per tile of channels. `dz` may be null.
template <typename T, int kWidth, bool kChannelsLast, bool kRelu, bool kSecond>
__global__ void __launch_bounds__(kReduceThreads, kReduceResident)
    sums_kernel(const T* dy, const T* dy2, const T* x, const T* y, double* parts, unsigned* counters, SumsEnd end,
                T* dz, NormCut cut) {
  const NormSpot spot = norm_spot<kWidth, kReduceThreads>(cut, blockIdx.x);
  double sum[kWidth] = {}, product[kWidth] = {};  // of dz, of dz * (x - shift)
  Pack<kWidth> shift{};
  if (spot.channel < cut.channels)
#pragma unroll
    for (int k = 0; k < kWidth; ++k)
      shift.v[k] = static_cast<float>(channel_stats(end.stats, cut.channels, spot.channel + k).mean);
  const auto add = [&]<bool kWhole>(unsigned row) {
    RawPack<T, kWidth> gradients[kSumsChunk], values[kSumsChunk];
    [[maybe_unused]] RawPack<T, kWidth> seconds[kSumsChunk], outputs[kSumsChunk];  // with kSecond, with kRelu
#pragma unroll
    for (unsigned i = 0; i < kSumsChunk; ++i)
      if (kWhole || row + i * spot.step < spot.end) {
        const long long at = norm_place<kChannelsLast>(cut, spot.channel, row + i * spot.step);
        gradients[i] = load_raw<kWidth>(dy + at);
        if constexpr (kSecond) seconds[i] = load_raw<kWidth>(dy2 + at);
        if constexpr (kRelu) outputs[i] = load_raw<kWidth>(y + at);
        values[i] = load_raw<kWidth>(x + at);
      }
    float chunk_sum[kWidth] = {}, chunk_product[kWidth] = {};
#pragma unroll
    for (unsigned i = 0; i < kSumsChunk; ++i)
      if (kWhole || row + i * spot.step < spot.end) {
        Pack<kWidth> masked;
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
          float gradient = gradients[i][k];
          if constexpr (kSecond) gradient += seconds[i][k];
          if constexpr (kRelu) gradient = outputs[i][k] > 0 ? gradient : 0.f;
          masked.v[k] = gradient;
          chunk_sum[k] += gradient;
          chunk_product[k] = fmaf(gradient, values[i][k] - shift.v[k], chunk_product[k]);
        }
        if (dz) store_pack(dz + norm_place<kChannelsLast>(cut, spot.channel, row + i * spot.step), masked);
      }
#pragma unroll
    for (int k = 0; k < kWidth; ++k) sum[k] += chunk_sum[k], product[k] += chunk_product[k];
  };
  unsigned row = spot.row;
  for (; row + (kSumsChunk - 1) * spot.step < spot.end; row += kSumsChunk * spot.step)
    add.template operator()<true>(row);
  if (row < spot.end) add.template operator()<false>(row);

  reduce_rows(sum, product, parts, counters, cut, spot,
              [&](unsigned channel, double all, double products) { end.write(cut.channels, channel, all, products); });
}

class BackwardSumsOp final : public ReducingNormOp {
 public:
  explicit BackwardSumsOp(const BatchNormBackwardSums& desc) : ReducingNormOp(desc.x, kSumsChunk), relu_(desc.relu) {}

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<BatchNormBackwardSums>(pointers);
    const bool second = args.dy2 != nullptr;
    const bool aligned = take_packs(args.dy, args.dy2, args.x, relu_ ? args.y : nullptr, args.dz);
    const SumsEnd end{static_cast<const double*>(args.stats), static_cast<double*>(args.sums), out(args.dweight),
                      out(args.dbias)};
    over_values<true>(aligned, [&]<typename T, int kWidth, bool kChannelsLast>(const NormCut& own) {
      const auto kernel = relu_    ? second ? sums_kernel<T, kWidth, kChannelsLast, true, true>
                                            : sums_kernel<T, kWidth, kChannelsLast, true, false>
                             : second ? sums_kernel<T, kWidth, kChannelsLast, false, true>
                                   : sums_kernel<T, kWidth, kChannelsLast, false, false>;
      launch(over_parts("batch_norm_backward_sums", own, stream, kReduceThreads), kernel, args.dy, args.dy2, args.x,
             args.y, workspace, counters(), end, args.dz, own);
    });
  }

 private:
  bool relu_;
};

}  // namespace

std::unique_ptr<CudaOp> make(const BatchNormBackwardSums& desc, const CudaOpOptions&) {
  return std::make_unique<BackwardSumsOp>(desc);
}

// BatchNormMerge, BatchNormTrack and BatchNormRunning: one thread per channel. BatchNormFold: one block per channel.

namespace {

constexpr int kThreads = 128;

struct Merged {
  double count = 0, mean = 0, squares = 0;
};
// Merges the moments of `parts` parts for one channel.
__device__ __forceinline__ Merged merged(const double* moments, unsigned channel, unsigned channels, int parts) {
  Merged all;
  for (int part = 0; part < parts; ++part) {
    const double* const own = moments + static_cast<long long>(part) * (1 + 2 * static_cast<long long>(channels));
    const double added = own[0];
    if (!(added > 0)) continue;
    const double away = own[1 + channel] - all.mean, share = added / (all.count + added);
    all.mean += away * share;
    all.squares += own[1 + channels + channel] + away * away * all.count * share;
    all.count += added;
  }
  return all;
}

__global__ void __launch_bounds__(kThreads)
    merge_kernel(const double* moments, double* stats, unsigned channels, int parts, double eps) {
  const unsigned channel = blockIdx.x * kThreads + threadIdx.x;
  if (channel >= channels) return;
  const Merged all = merged(moments, channel, channels, parts);
  if (channel == 0) stats[0] = all.count;
  stats[1 + channel] = all.mean;
  stats[1 + channels + channel] = 1 / sqrt(all.squares / (all.count > 0 ? all.count : 1) + eps);
}

// The normalisations of one launch, as a kernel argument.
struct Tracked {
  double momentum;
  unsigned moments, mean, variance, channels;  // offsets: moments in doubles, mean and variance in elements
};
constexpr std::size_t kMostTracked = 32;
struct TrackTable {
  Tracked norms[kMostTracked];
};

// blockIdx: tile of channels, normalisation.
__global__ void __launch_bounds__(kThreads)
    track_kernel(const double* moments, float* running, TrackTable table, int parts) {
  const Tracked& norm = table.norms[blockIdx.y];
  const unsigned channel = blockIdx.x * kThreads + threadIdx.x;
  if (channel >= norm.channels) return;
  const Merged all = merged(moments + norm.moments, channel, norm.channels, parts);
  if (!(all.count > 0) || !(all.mean - all.mean == 0) || !(all.squares - all.squares == 0)) return;
  const double variance = all.squares / (all.count > 1 ? all.count - 1 : 1), kept = 1 - norm.momentum;
  float &to_mean = running[norm.mean + channel], &to_variance = running[norm.variance + channel];
  to_mean = static_cast<float>(kept * to_mean + norm.momentum * all.mean);
  to_variance = static_cast<float>(kept * to_variance + norm.momentum * variance);
}

__global__ void __launch_bounds__(kThreads)
    running_kernel(const float* mean, const float* variance, double* stats, unsigned channels, double eps) {
  const unsigned channel = blockIdx.x * kThreads + threadIdx.x;
  if (channel >= channels) return;
  if (channel == 0) stats[0] = 0;
  stats[1 + channel] = mean[channel];
  stats[1 + channels + channel] = 1 / sqrt(variance[channel] + eps);
}

class MergeOp final : public CudaOp {
 public:
  explicit MergeOp(const BatchNormMerge& desc) : desc_(desc) {}

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<BatchNormMerge>(pointers);
    launch({"batch_norm_merge", dim3(blocks_for(desc_.channels, kThreads)), dim3(kThreads), stream}, merge_kernel,
           args.moments, args.stats, desc_.channels, desc_.parts, desc_.eps);
  }

 private:
  BatchNormMerge desc_;
};

class TrackOp final : public CudaOp {
 public:
  explicit TrackOp(const BatchNormTrack& desc) : desc_(desc) {}

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<BatchNormTrack>(pointers);
    for (std::size_t first = 0; first < desc_.norms.size(); first += kMostTracked) {
      const std::size_t count = std::min(kMostTracked, desc_.norms.size() - first);
      TrackTable table{};
      std::int64_t channels = 0;  // of the largest normalisation
      for (std::size_t i = 0; i < count; ++i) {
        const BatchNormTrack::Norm& norm = desc_.norms[first + i];
        table.norms[i] = {norm.momentum, static_cast<unsigned>(norm.moments), static_cast<unsigned>(norm.mean),
                          static_cast<unsigned>(norm.variance), static_cast<unsigned>(norm.channels)};
        channels = std::max(channels, norm.channels);
      }
      const dim3 grid(blocks_for(channels, kThreads), static_cast<unsigned>(count));
      launch({"batch_norm_track", grid, dim3(kThreads), stream}, track_kernel, args.moments, args.running, table,
             desc_.parts);
    }
  }

 private:
  BatchNormTrack desc_;
};

// Each block scales the filter of the output channel blockIdx.x. A filter is contiguous in both weight layouts.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    fold_kernel(const T* w, const float* b, const float* weight, const float* bias, const float* mean,
                const float* variance, T* folded_w, float* folded_b, long long filter, double eps) {
  const unsigned channel = blockIdx.x;
  const double scale = weight[channel] / sqrt(variance[channel] + eps);
  const float factor = static_cast<float>(scale);
  const long long begin = channel * filter;
  for (long long i = threadIdx.x; i < filter; i += kThreads)
    folded_w[begin + i] = from_float<T>(to_float(w[begin + i]) * factor);
  if (threadIdx.x == 0)
    folded_b[channel] = static_cast<float>(bias[channel] + ((b != nullptr ? b[channel] : 0.) - mean[channel]) * scale);
}

class RunningOp final : public CudaOp {
 public:
  explicit RunningOp(const BatchNormRunning& desc) : desc_(desc) {}

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<BatchNormRunning>(pointers);
    launch({"batch_norm_running", dim3(blocks_for(desc_.channels, kThreads)), dim3(kThreads), stream}, running_kernel,
           args.mean, args.variance, args.stats, desc_.channels, desc_.eps);
  }

 private:
  BatchNormRunning desc_;
};

class FoldOp final : public CudaOp {
 public:
  explicit FoldOp(const BatchNormFold& desc) : eps_(desc.eps) { tensors_ = {resolved_plain(desc.w)}; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<BatchNormFold>(pointers);
    const Shape& shape = tensors_[0].shape;
    in_type(tensors_[0].type, [&]<typename T>() {
      launch({"batch_norm_fold", dim3(static_cast<unsigned>(shape[0])), dim3(kThreads), stream}, fold_kernel<T>, args.w,
             args.b, args.weight, args.bias, args.mean, args.variance, args.folded_w, args.folded_b,
             static_cast<long long>(shape.without_first().numel()), eps_);
    });
  }

 private:
  double eps_;
};

}  // namespace

std::unique_ptr<CudaOp> make(const BatchNormMerge& desc, const CudaOpOptions&) {
  return std::make_unique<MergeOp>(desc);
}
std::unique_ptr<CudaOp> make(const BatchNormTrack& desc, const CudaOpOptions&) {
  return std::make_unique<TrackOp>(desc);
}
std::unique_ptr<CudaOp> make(const BatchNormRunning& desc, const CudaOpOptions&) {
  return std::make_unique<RunningOp>(desc);
}
std::unique_ptr<CudaOp> make(const BatchNormFold& desc, const CudaOpOptions&) { return std::make_unique<FoldOp>(desc); }

}  // namespace dp::kernels::cuda
