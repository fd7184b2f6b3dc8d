// BatchNormBackwardSums in one pass: ReLU mask, sum of both gradients, dz, and the two sums over N,H,W. A thread sums
// kChunk rows in float; these partial sums are added in double.
#include "kernels/cuda/ops/batch_norm_sums.h"
#include "kernels/op_args.h"

#include "kernels/cuda/ops/batch_norm_op.h"

namespace dp::kernels::cuda {
namespace {

constexpr int kChunk = 4;

// `counters`: one per tile of channels. `dz` may be null.
template <typename T, int kWidth, bool kChannelsLast, bool kRelu, bool kSecond>
__global__ void __launch_bounds__(kReduceThreads, kReduceResident)
    sums_kernel(const T* dy, const T* dy2, const T* x, const T* y, double* parts, unsigned* counters, SumsEnd end,
                T* dz, NormCut cut) {
  const NormSpot spot = norm_spot<kWidth, kReduceThreads>(cut);
  double sum[kWidth] = {}, product[kWidth] = {};  // of dz, of dz * (x - shift)
  Pack<kWidth> shift{};
  if (spot.channel < cut.channels)
#pragma unroll
    for (int k = 0; k < kWidth; ++k)
      shift.v[k] = static_cast<float>(channel_stats(end.stats, cut.channels, spot.channel + k).mean);
  const auto add = [&]<bool kWhole>(unsigned row) {
    RawPack<T, kWidth> gradients[kChunk], values[kChunk];
    [[maybe_unused]] RawPack<T, kWidth> seconds[kChunk], outputs[kChunk];  // with kSecond, with kRelu
#pragma unroll
    for (unsigned i = 0; i < kChunk; ++i)
      if (kWhole || row + i * spot.step < spot.end) {
        const long long at = norm_place<kChannelsLast>(cut, spot.channel, row + i * spot.step);
        gradients[i] = load_raw<kWidth>(dy + at);
        if constexpr (kSecond) seconds[i] = load_raw<kWidth>(dy2 + at);
        if constexpr (kRelu) outputs[i] = load_raw<kWidth>(y + at);
        values[i] = load_raw<kWidth>(x + at);
      }
    float chunk_sum[kWidth] = {}, chunk_product[kWidth] = {};
#pragma unroll
    for (unsigned i = 0; i < kChunk; ++i)
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
  for (; row + (kChunk - 1) * spot.step < spot.end; row += kChunk * spot.step) add.template operator()<true>(row);
  if (row < spot.end) add.template operator()<false>(row);

  reduce_rows(sum, product, parts, counters, cut, spot,
              [&](unsigned channel, double all, double products) { end.write(cut.channels, channel, all, products); });
}

class BackwardSumsOp final : public ReducingNormOp {
 public:
  explicit BackwardSumsOp(const BatchNormBackwardSums& desc) : ReducingNormOp(desc.x, kChunk), relu_(desc.relu) {}

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

}  // namespace dp::kernels::cuda
