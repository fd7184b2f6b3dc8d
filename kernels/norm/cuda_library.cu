#include "kernels/norm/cuda_library.h"

#include "kernels/low_float.h"
#include "kernels/norm/cuda_reduce.h"

namespace dp::kernels::cuda {
namespace {

constexpr unsigned kThreads = 128;

Launch over_all(const char* kernel, std::int64_t channels, cudaStream_t stream) {
  return {kernel, dim3(blocks_for(channels, kThreads)), dim3(kThreads), stream};
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    scale_and_offset_kernel(const double* stats, const float* weight, const float* bias, T* scale, T* offset,
                            unsigned channels) {
  const unsigned channel = blockIdx.x * kThreads + threadIdx.x;
  if (channel >= channels) return;
  const ChannelStats own = channel_stats(stats, channels, channel);
  const T rounded = from_float<T>(static_cast<float>(own.inv_std * weight[channel]));
  scale[channel] = rounded;
  offset[channel] =
      from_float<T>(static_cast<float>(bias[channel] - own.mean * static_cast<double>(to_float(rounded))));
}

__global__ void __launch_bounds__(kThreads)
    moments_of_sums_kernel(const float* sums, const float* squares, MomentsEnd end, NormCut cut) {
  const unsigned channel = blockIdx.x * kThreads + threadIdx.x;
  if (channel >= cut.channels) return;
  const double sum = sums[channel], mean = sum / cut.rows;
  end.write(cut, channel, {mean, squares[channel] - sum * mean});
}

__global__ void __launch_bounds__(kThreads)
    backward_numbers_kernel(ReluMask mask, const double* stats, const float* weight, const float* bias, float* mean,
                            float* inv_std, float* scale, float* offset, unsigned channels) {
  const unsigned channel = blockIdx.x * kThreads + threadIdx.x;
  if (channel >= channels) return;
  const ChannelStats own = channel_stats(stats, channels, channel);
  mean[channel] = static_cast<float>(own.mean);
  inv_std[channel] = static_cast<float>(own.inv_std);
  scale[channel] = mask == ReluMask::normalized ? weight[channel] : 0.f;
  offset[channel] = mask == ReluMask::normalized ? bias[channel] : mask == ReluMask::open ? 1.f : 0.f;
}

__global__ void __launch_bounds__(kThreads)
    backward_sums_kernel(const float* products, const float* gradients, double* sums, float* dweight, float* dbias,
                         unsigned channels) {
  const unsigned channel = blockIdx.x * kThreads + threadIdx.x;
  if (channel >= channels) return;
  sums[channel] = dbias[channel] = gradients[channel];
  sums[channels + channel] = dweight[channel] = products[channel];
}

}  // namespace

void enqueue_scale_and_offset(cudaStream_t stream, DType type, const void* stats, const void* weight, const void* bias,
                              void* scale, void* offset, std::int64_t channels) {
  in_type(type, [&]<typename T>() {
    launch(over_all("scale_and_offset", channels, stream), scale_and_offset_kernel<T>,
           static_cast<const double*>(stats), static_cast<const float*>(weight), static_cast<const float*>(bias),
           static_cast<T*>(scale), static_cast<T*>(offset), static_cast<unsigned>(channels));
  });
}

void enqueue_moments_of_sums(cudaStream_t stream, const void* sums, const void* squares, std::int64_t n, void* moments,
                             void* stats, double eps, std::int64_t channels) {
  NormCut cut;
  cut.channels = static_cast<unsigned>(channels), cut.rows = static_cast<unsigned>(n);
  launch(over_all("moments_of_sums", channels, stream), moments_of_sums_kernel, static_cast<const float*>(sums),
         static_cast<const float*>(squares),
         MomentsEnd{static_cast<double*>(moments), static_cast<double*>(stats), eps}, cut);
}

void enqueue_backward_numbers(cudaStream_t stream, ReluMask mask, const void* stats, const void* weight,
                              const void* bias, void* mean, void* inv_std, void* scale, void* offset,
                              std::int64_t channels) {
  launch(over_all("backward_numbers", channels, stream), backward_numbers_kernel, mask,
         static_cast<const double*>(stats), static_cast<const float*>(weight), static_cast<const float*>(bias),
         static_cast<float*>(mean), static_cast<float*>(inv_std), static_cast<float*>(scale),
         static_cast<float*>(offset), static_cast<unsigned>(channels));
}

void enqueue_backward_sums(cudaStream_t stream, const void* products, const void* gradients, void* sums, void* dweight,
                           void* dbias, std::int64_t channels) {
  launch(over_all("backward_sums", channels, stream), backward_sums_kernel, static_cast<const float*>(products),
         static_cast<const float*>(gradients), static_cast<double*>(sums), static_cast<float*>(dweight),
         static_cast<float*>(dbias), static_cast<unsigned>(channels));
}

}  // namespace dp::kernels::cuda
