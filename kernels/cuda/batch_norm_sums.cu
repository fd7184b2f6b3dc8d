// BatchNormBackwardSums in one pass: the ReLU's mask, the sum of both gradients, dz, and the two sums over N,H,W, taken in float
// over a few values, then in double within a thread, a block and over the parts of the tensor, always in the same order.
#include "kernels/cuda/batch_norm_sums.h"

#include "kernels/cuda/batch_norm_op.h"

namespace dp::kernels::cuda {
namespace {

constexpr int kChunk = 4;  // rows that a thread loads at once
constexpr unsigned kBlocks = 512;

// Adds the rows' columns of shared memory, one for each thread of the block, into the first `lanes`.
template <int kRows, unsigned kThreads>
__device__ __forceinline__ void add_in_block(double (&columns)[kRows][kThreads], unsigned lanes) {
  __syncthreads();
  for (unsigned half = kThreads / 2; half >= lanes; half /= 2) {
    if (threadIdx.x < half)
      for (int row = 0; row < kRows; ++row) columns[row][threadIdx.x] += columns[row][threadIdx.x + half];
    __syncthreads();
  }
}

// `parts`: for each part the sums of dz, then those of dz * (x - float(mean)), of all channels. `dz` may be null.
template <typename T, int kWidth, bool kChannelsLast, bool kRelu, bool kSecond>
__global__ void __launch_bounds__(kNormThreads) sums_kernel(const T* dy, const T* dy2, const T* x, const T* y,
                                                            const double* stats, double* parts, T* dz, NormCut cut) {
  DP_SHARED(double, sums, [2 * kWidth][kNormThreads]);  // of dz, then of the products
  const NormSpot spot = norm_spot<kWidth>(cut);
  double sum[kWidth] = {}, product[kWidth] = {};
  Pack<kWidth> shift{};
  if (spot.channel < cut.channels)
    for (int k = 0; k < kWidth; ++k)
      shift.v[k] = static_cast<float>(channel_stats(stats, cut.channels, spot.channel + k).mean);
  for (unsigned row = spot.row; row < spot.end; row += kChunk * spot.step) {
    Pack<kWidth> gradients[kChunk], seconds[kChunk], values[kChunk], outputs[kChunk];
    load_rows<kWidth, kChannelsLast>(dy, cut, spot, row, gradients);
    if constexpr (kSecond) load_rows<kWidth, kChannelsLast>(dy2, cut, spot, row, seconds);
    if constexpr (kRelu) load_rows<kWidth, kChannelsLast>(y, cut, spot, row, outputs);
    load_rows<kWidth, kChannelsLast>(x, cut, spot, row, values);
    for (int k = 0; k < kWidth; ++k) {
      float chunk_sum = 0, chunk_product = 0;
      for (int i = 0; i < kChunk; ++i) {  // gradients of zero behind the last
        float& gradient = gradients[i].v[k];
        if constexpr (kSecond) gradient += seconds[i].v[k];
        if constexpr (kRelu) gradient = outputs[i].v[k] > 0 ? gradient : 0.f;
        chunk_sum += gradient;
        chunk_product = fmaf(gradient, values[i].v[k] - shift.v[k], chunk_product);
      }
      sum[k] += chunk_sum;
      product[k] += chunk_product;
    }
    if (dz) store_rows<kWidth, kChannelsLast>(dz, cut, spot, row, gradients);
  }

  for (int k = 0; k < kWidth; ++k) sums[k][threadIdx.x] = sum[k], sums[kWidth + k][threadIdx.x] = product[k];
  add_in_block(sums, cut.lanes);
  if (threadIdx.x >= cut.lanes || spot.channel >= cut.channels) return;
  double* const part = parts + static_cast<long long>(spot.part) * 2 * cut.channels + spot.channel;
  for (int k = 0; k < kWidth; ++k)
    part[k] = sums[k][threadIdx.x], part[cut.channels + k] = sums[kWidth + k][threadIdx.x];
}

__global__ void __launch_bounds__(kJoinThreads)
    join_sums_kernel(const double* partials, const double* stats, double* sums, float* dweight, float* dbias,
                     unsigned parts, unsigned channels) {
  DP_SHARED(double, joined, [2][kJoinThreads]);
  const unsigned lane = threadIdx.x / kJoinChannels, channel = blockIdx.x * kJoinChannels + threadIdx.x % kJoinChannels;
  double sum = 0, product = 0;
  if (channel < channels)
    for (unsigned part = lane; part < parts; part += kJoinLanes) {
      const double* const from = partials + static_cast<long long>(part) * 2 * channels + channel;
      sum += from[0];
      product += from[channels];
    }
  joined[0][threadIdx.x] = sum, joined[1][threadIdx.x] = product;
  add_in_block(joined, kJoinChannels);
  if (lane != 0 || channel >= channels) return;
  const ChannelStats own = channel_stats(stats, channels, channel);
  sum = joined[0][threadIdx.x];
  product = (joined[1][threadIdx.x] + (static_cast<float>(own.mean) - own.mean) * sum) * own.inv_std;
  sums[channel] = sum;
  sums[channels + channel] = product;
  dbias[channel] = static_cast<float>(sum);
  dweight[channel] = static_cast<float>(product);
}

class BackwardSumsOp final : public NormOp {
 public:
  explicit BackwardSumsOp(const BatchNormBackwardSums& desc) : NormOp(desc.x, kChunk, kBlocks), relu_(desc.relu) {}
  std::size_t workspace_bytes() const override { return parts_bytes(); }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> args, void* workspace) override {
    const bool second = args[1] != nullptr;
    const bool aligned = take_packs(args[0], args[1], args[2], relu_ ? args[3] : nullptr, args[8]);
    const NormCut& cut = over_values(aligned, [&]<typename T, int kWidth, bool kChannelsLast>(const NormCut& own) {
      const auto kernel = relu_    ? second ? sums_kernel<T, kWidth, kChannelsLast, true, true>
                                            : sums_kernel<T, kWidth, kChannelsLast, true, false>
                             : second ? sums_kernel<T, kWidth, kChannelsLast, false, true>
                                   : sums_kernel<T, kWidth, kChannelsLast, false, false>;
      launch(over_parts("batch_norm_backward_sums", own, stream), kernel, args[0], args[1], args[2], args[3], args[4],
             workspace, args[8], own);
    });
    enqueue_join_sums(stream, static_cast<const double*>(workspace), cut.parts, cut.channels,
                      static_cast<const double*>(args[4]), static_cast<double*>(args[5]), out(args[6]), out(args[7]));
  }

 private:
  bool relu_;
};

}  // namespace

void enqueue_join_sums(cudaStream_t stream, const double* partials, unsigned parts, unsigned channels,
                       const double* stats, double* sums, float* dweight, float* dbias) {
  launch(over_channels("join_sums", channels, stream), join_sums_kernel, partials, stats, sums, dweight, dbias, parts,
         channels);
}

std::unique_ptr<CudaOp> make(const BatchNormBackwardSums& desc, const CudaOpOptions&) {
  return std::make_unique<BackwardSumsOp>(desc);
}

}  // namespace dp::kernels::cuda
