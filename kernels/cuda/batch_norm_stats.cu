// BatchNormMerge and BatchNormRunning: a thread for each channel.
#include "device_code.h"
#include "kernels/cuda/cuda_op.h"

namespace dp::kernels::cuda {
namespace {

constexpr int kThreads = 128;

// `stats` may be null, and both running values.
__global__ void __launch_bounds__(kThreads)
    merge_kernel(const double* moments, double* stats, float* running_mean, float* running_variance, unsigned channels,
                 int parts, double eps, double momentum) {
  const unsigned channel = blockIdx.x * kThreads + threadIdx.x;
  if (channel >= channels) return;
  double count = 0, mean = 0, squares = 0;
  for (int part = 0; part < parts; ++part) {
    const double* const own = moments + static_cast<long long>(part) * (1 + 2 * static_cast<long long>(channels));
    const double added = own[0];
    if (!(added > 0)) continue;
    const double away = own[1 + channel] - mean, share = added / (count + added);
    mean += away * share;
    squares += own[1 + channels + channel] + away * away * count * share;
    count += added;
  }
  if (stats) {
    if (channel == 0) stats[0] = count;
    stats[1 + channel] = mean;
    stats[1 + channels + channel] = 1 / sqrt(squares / (count > 0 ? count : 1) + eps);
  }
  if (running_mean && count > 0 && mean - mean == 0 && squares - squares == 0) {
    const double variance = squares / (count > 1 ? count - 1 : 1), kept = 1 - momentum;
    running_mean[channel] = static_cast<float>(kept * running_mean[channel] + momentum * mean);
    running_variance[channel] = static_cast<float>(kept * running_variance[channel] + momentum * variance);
  }
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
  void enqueue(cudaStream_t stream, std::span<void* const> args, void*) override {
    launch({"batch_norm_merge", dim3(blocks_for(desc_.channels, kThreads)), dim3(kThreads), stream}, merge_kernel,
           args[0], args[1], args[2], args[3], desc_.channels, desc_.parts, desc_.eps, desc_.momentum);
  }

 private:
  BatchNormMerge desc_;
};

class RunningOp final : public CudaOp {
 public:
  explicit RunningOp(const BatchNormRunning& desc) : desc_(desc) {}

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> args, void*) override {
    launch({"batch_norm_running", dim3(blocks_for(desc_.channels, kThreads)), dim3(kThreads), stream}, running_kernel,
           args[0], args[1], args[2], desc_.channels, desc_.eps);
  }

 private:
  BatchNormRunning desc_;
};

}  // namespace

std::unique_ptr<CudaOp> make(const BatchNormMerge& desc, const CudaOpOptions&) {
  return std::make_unique<MergeOp>(desc);
}
std::unique_ptr<CudaOp> make(const BatchNormRunning& desc, const CudaOpOptions&) {
  return std::make_unique<RunningOp>(desc);
}

}  // namespace dp::kernels::cuda
