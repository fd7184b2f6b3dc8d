// BatchNormBackwardSums in one pass: the ReLU's mask, the sum of both gradients, dz, and the two sums over N,H,W, taken in float
// over a few values, then in double within a thread, a block and over the parts of the tensor, always in the same order.
#include "kernels/cuda/batch_norm.h"
#include "kernels/cuda/cuda_op.h"

namespace dp::kernels::cuda {
namespace {

constexpr int kChunk = 4;  // rows that a thread loads at once
constexpr unsigned kBlocks = 512;

// `parts`: for each part the sums of dz, then those of dz * (x - float(mean)), of all channels. `dz` may be null.
template <int kWidth, bool kChannelsLast, bool kRelu, bool kSecond>
__global__ void __launch_bounds__(kNormThreads)
    sums_kernel(const float* dy, const float* dy2, const float* x, const float* y, const double* stats, double* parts,
                float* dz, NormCut cut) {
  DP_SHARED(double, sums, [kWidth][kNormThreads]);
  DP_SHARED(double, products, [kWidth][kNormThreads]);
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

  for (int k = 0; k < kWidth; ++k) sums[k][threadIdx.x] = sum[k], products[k][threadIdx.x] = product[k];
  __syncthreads();
  for (unsigned half = kNormThreads / 2; half >= cut.lanes; half /= 2) {
    if (threadIdx.x < half)
      for (int k = 0; k < kWidth; ++k) {
        sums[k][threadIdx.x] += sums[k][threadIdx.x + half];
        products[k][threadIdx.x] += products[k][threadIdx.x + half];
      }
    __syncthreads();
  }
  if (threadIdx.x >= cut.lanes || spot.channel >= cut.channels) return;
  double* const part = parts + static_cast<long long>(spot.part) * 2 * cut.channels + spot.channel;
  for (int k = 0; k < kWidth; ++k) part[k] = sums[k][threadIdx.x], part[cut.channels + k] = products[k][threadIdx.x];
}

__global__ void __launch_bounds__(kJoinThreads) join_sums_kernel(const double* parts, const double* stats, double* sums,
                                                                 float* dweight, float* dbias, NormCut cut) {
  DP_SHARED(double, joined, [2][kJoinThreads]);
  const unsigned lane = threadIdx.x / kJoinChannels, channel = blockIdx.x * kJoinChannels + threadIdx.x % kJoinChannels;
  double sum = 0, product = 0;
  if (channel < cut.channels)
    for (unsigned part = lane; part < cut.parts; part += kJoinLanes) {
      const double* const from = parts + static_cast<long long>(part) * 2 * cut.channels + channel;
      sum += from[0];
      product += from[cut.channels];
    }
  joined[0][threadIdx.x] = sum, joined[1][threadIdx.x] = product;
  __syncthreads();
  for (unsigned half = kJoinThreads / 2; half >= kJoinChannels; half /= 2) {
    if (threadIdx.x < half)
      for (int which = 0; which < 2; ++which) joined[which][threadIdx.x] += joined[which][threadIdx.x + half];
    __syncthreads();
  }
  if (lane != 0 || channel >= cut.channels) return;
  const ChannelStats own = channel_stats(stats, cut.channels, channel);
  sum = joined[0][threadIdx.x];
  product = (joined[1][threadIdx.x] + (static_cast<float>(own.mean) - own.mean) * sum) * own.inv_std;
  sums[channel] = sum;
  sums[cut.channels + channel] = product;
  dbias[channel] = static_cast<float>(sum);
  dweight[channel] = static_cast<float>(product);
}

class BackwardSumsOp final : public CudaOp {
 public:
  explicit BackwardSumsOp(const BatchNormBackwardSums& desc) : relu_(desc.relu) {
    tensors_ = {resolved_channels_last(desc.x)};
    channels_last_ = is_channels_last(tensors_[0]);
    for (const int width : {1, 4}) cuts_[width == 4] = cut_norm(tensors_[0], width, kChunk, kBlocks);
  }
  std::size_t workspace_bytes() const override {
    return std::size_t{std::max(cuts_[0].parts, cuts_[1].parts)} * 2 * cuts_[0].channels * sizeof(double);
  }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> args, void* workspace) override {
    const bool packs = channels_last_ && cuts_[0].channels % 4 == 0 &&
                       take_packs(args[0], args[1], args[2], relu_ ? args[3] : nullptr, args[8]);
    const NormCut& cut = cuts_[packs];
    if (cut.parts > 0) {
      if (packs)
        run<4, true>(stream, args, workspace);
      else
        channels_last_ ? run<1, true>(stream, args, workspace) : run<1, false>(stream, args, workspace);
    }
    launch(over_channels("join_sums", cut.channels, stream), join_sums_kernel, workspace, args[4], args[5], args[6],
           args[7], cut);
  }

 private:
  template <int kWidth, bool kChannelsLast>
  void run(cudaStream_t stream, std::span<void* const> args, void* workspace) {
    const NormCut& cut = cuts_[kWidth == 4];
    const bool second = args[1] != nullptr;
    const auto kernel = relu_    ? second ? sums_kernel<kWidth, kChannelsLast, true, true>
                                          : sums_kernel<kWidth, kChannelsLast, true, false>
                           : second ? sums_kernel<kWidth, kChannelsLast, false, true>
                                 : sums_kernel<kWidth, kChannelsLast, false, false>;
    launch(over_parts("batch_norm_backward_sums", cut, stream), kernel, args[0], args[1], args[2], args[3], args[4],
           workspace, args[8], cut);
  }

  bool relu_, channels_last_;
  NormCut cuts_[2];  // in single floats, in packs
};

}  // namespace

std::unique_ptr<CudaOp> make(const BatchNormBackwardSums& desc, const CudaOpOptions&) {
  return std::make_unique<BackwardSumsOp>(desc);
}

}  // namespace dp::kernels::cuda
