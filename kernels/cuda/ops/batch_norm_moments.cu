// BatchNormMoments in one pass (docs/decisions/0058). It sums the deviations from a pivot, and their squares. The pivot
// is the median of three values of the channel. It is close to the mean, so a large mean costs no accuracy. A thread
// sums kChunk rows in float; these partial sums are added in double.
#include <optional>

#include "kernels/cuda/ops/batch_norm_join.h"
#include "kernels/cuda/ops/batch_norm_op.h"
#include "kernels/op_args.h"

namespace dp::kernels::cuda {
namespace {

constexpr int kChunk = 8;

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
  const NormSpot spot = norm_spot<kWidth, kReduceThreads>(cut);
  Pack<kWidth> pivot{};
  if (spot.channel < cut.channels && cut.rows > 0) pivot = pivots_of<kWidth, kChannelsLast>(x, cut, spot.channel);
  if (threadIdx.x < cut.lanes)
#pragma unroll
    for (int k = 0; k < kWidth; ++k) pivots[threadIdx.x * kWidth + k] = pivot.v[k];

  double sum[kWidth] = {}, square[kWidth] = {};
  const auto add = [&]<bool kWhole>(unsigned row) {
    RawPack<T, kWidth> values[kChunk];
#pragma unroll
    for (unsigned i = 0; i < kChunk; ++i)
      if (kWhole || row + i * spot.step < spot.end)
        values[i] = load_raw<kWidth>(x + norm_place<kChannelsLast>(cut, spot.channel, row + i * spot.step));
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      float chunk_sum = 0, chunk_square = 0;
#pragma unroll
      for (unsigned i = 0; i < kChunk; ++i) {
        const float away = kWhole || row + i * spot.step < spot.end ? values[i][k] - pivot.v[k] : 0.f;
        chunk_sum += away;
        chunk_square = fmaf(away, away, chunk_square);
      }
      sum[k] += chunk_sum;
      square[k] += chunk_square;
    }
  };
  unsigned row = spot.row;
  for (; row + (kChunk - 1) * spot.step < spot.end; row += kChunk * spot.step) add.template operator()<true>(row);
  if (row < spot.end) add.template operator()<false>(row);

  reduce_rows(sum, square, parts, counters, cut, spot, [&](unsigned channel, double all, double squares) {
    const double away = cut.rows > 0 ? all / cut.rows : 0;
    end.write(cut, channel, {pivots[channel % (cut.lanes * kWidth)] + away, squares - all * away});
  });
}

class MomentsOp final : public ReducingNormOp {
 public:
  explicit MomentsOp(const BatchNormMoments& desc) : ReducingNormOp(desc.x, kChunk), eps_(desc.eps) {}

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

}  // namespace dp::kernels::cuda
