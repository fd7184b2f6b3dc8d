// BatchNormMerge, BatchNormTrack and BatchNormRunning: one thread per channel. BatchNormFold: one block per channel.
#include <algorithm>

#include "device_code.h"
#include "kernels/cuda/cuda_op.h"
#include "kernels/cuda/ops/pack.h"
#include "kernels/op_args.h"

namespace dp::kernels::cuda {
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
