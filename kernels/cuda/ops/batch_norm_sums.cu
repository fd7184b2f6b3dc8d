// BatchNormBackwardSums in one pass: ReLU mask, sum of both gradients, dz, and the two sums
// over N,H,W. A thread sums kChunk rows in float. These sums are added in double: within
// the thread, within the block, then over the parts of the tensor. The order is fixed.
#include "kernels/cuda/ops/batch_norm_sums.h"
#include "kernels/op_args.h"

#include "kernels/cuda/ops/batch_norm_op.h"
#include "kernels/cuda/runtime/last_block.h"

namespace dp::kernels::cuda {
namespace {

constexpr int kChunk = 4;  // rows that a thread loads at once
constexpr unsigned kBlocks = 512;

// In each row of shared memory, adds columns i, i + lanes, i + 2 * lanes, ... into column
// i, for i < lanes. A row has one column per thread.
template <int kRows, unsigned kThreads>
__device__ __forceinline__ void add_in_block(double (&columns)[kRows][kThreads], unsigned lanes) {
  __syncthreads();
  for (unsigned half = kThreads / 2; half >= lanes; half /= 2) {
    if (threadIdx.x < half)
      for (int row = 0; row < kRows; ++row) columns[row][threadIdx.x] += columns[row][threadIdx.x + half];
    __syncthreads();
  }
}

// `parts`: layout as in join_sums(), which the last block of each tile of channels calls.
// `counters`: one per tile. `dz` may be null.
template <typename T, int kWidth, bool kChannelsLast, bool kRelu, bool kSecond>
__global__ void __launch_bounds__(kNormThreads)
    sums_kernel(const T* dy, const T* dy2, const T* x, const T* y, double* parts, unsigned* counters, SumsEnd end,
                T* dz, NormCut cut) {
  DP_SHARED(double, sums, [2 * kWidth][kNormThreads]);  // of dz, then of dz * (x - shift)
  const NormSpot spot = norm_spot<kWidth>(cut);
  double sum[kWidth] = {}, product[kWidth] = {};
  Pack<kWidth> shift{};
  if (spot.channel < cut.channels)
    for (int k = 0; k < kWidth; ++k)
      shift.v[k] = static_cast<float>(channel_stats(end.stats, cut.channels, spot.channel + k).mean);
  for (unsigned row = spot.row; row < spot.end; row += kChunk * spot.step) {
    Pack<kWidth> gradients[kChunk], seconds[kChunk], values[kChunk], outputs[kChunk];
    load_rows<kWidth, kChannelsLast>(dy, cut, spot, row, gradients);
    if constexpr (kSecond) load_rows<kWidth, kChannelsLast>(dy2, cut, spot, row, seconds);
    if constexpr (kRelu) load_rows<kWidth, kChannelsLast>(y, cut, spot, row, outputs);
    load_rows<kWidth, kChannelsLast>(x, cut, spot, row, values);
    for (int k = 0; k < kWidth; ++k) {
      float chunk_sum = 0, chunk_product = 0;
      for (int i = 0; i < kChunk; ++i) {  // gradients past the last row are zero
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
  if (threadIdx.x < cut.lanes && spot.channel < cut.channels) {
    double* const part = parts + static_cast<long long>(spot.part) * 2 * cut.channels + spot.channel;
    for (int k = 0; k < kWidth; ++k)
      part[k] = sums[k][threadIdx.x], part[cut.channels + k] = sums[kWidth + k][threadIdx.x];
  }
  const unsigned tile = blockIdx.x % cut.tiles, first = tile * cut.lanes * kWidth;
  if (is_last_block(counters + tile, cut.parts))
    join_sums<kNormThreads>(parts, cut.parts, cut.channels, first, min(first + cut.lanes * kWidth, cut.channels), end);
}

class BackwardSumsOp final : public ReducingNormOp {
 public:
  explicit BackwardSumsOp(const BatchNormBackwardSums& desc)
      : ReducingNormOp(desc.x, kChunk, kBlocks), relu_(desc.relu) {}
  std::size_t workspace_bytes() const override { return parts_bytes(); }

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
      launch(over_parts("batch_norm_backward_sums", own, stream), kernel, args.dy, args.dy2, args.x, args.y, workspace,
             counters(), end, args.dz, own);
    });
  }

 private:
  bool relu_;
};

}  // namespace

std::unique_ptr<CudaOp> make(const BatchNormBackwardSums& desc, const CudaOpOptions&) {
  return std::make_unique<BackwardSumsOp>(desc);
}

}  // namespace dp::kernels::cuda
