// BatchNormMoments in one pass. A thread computes the moments of kChunk values in float, about
// a value close to their mean. These are merged in double (pairwise formula of Chan et al.):
// within the thread, within the block, then over the parts of the tensor. The order is fixed.
#include <optional>

#include "kernels/cuda/ops/batch_norm_join.h"
#include "kernels/cuda/ops/batch_norm_op.h"
#include "kernels/op_args.h"

namespace dp::kernels::cuda {
namespace {

constexpr int kChunk = 8;          // values that are summed in float
constexpr unsigned kBlocks = 512;  // at most; about four per multiprocessor of a large device

// `counters`: one per tile of channels. The last block of a tile joins its parts.
template <typename T, int kWidth, bool kChannelsLast>
// Two blocks per multiprocessor: without this bound ptxas aims at four on sm_75 and
// spills registers. Packs of eight need more registers than two blocks leave.
__global__ void __launch_bounds__(kNormThreads, (kWidth == 8 ? 1 : 2))
    moments_kernel(const T* x, double* parts, unsigned* counters, MomentsEnd end, NormCut cut) {
  DP_SHARED(double, means, [kWidth][kNormThreads]);
  DP_SHARED(double, squares, [kWidth][kNormThreads]);
  DP_SHARED(unsigned, counts, [kNormThreads]);
  const NormSpot spot = norm_spot<kWidth>(cut);
  Moments own[kWidth];
  unsigned count = 0;
  for (unsigned row = spot.row; row < spot.end; row += kChunk * spot.step) {
    Pack<kWidth> values[kChunk];
    load_rows<kWidth, kChannelsLast>(x, cut, spot, row, values);
    const unsigned left = (spot.end - row + spot.step - 1) / spot.step, added = left < kChunk ? left : kChunk;
    const float per_value = 1.f / static_cast<float>(added);
    const double share = static_cast<double>(added) / static_cast<double>(count + added);
    for (int k = 0; k < kWidth; ++k) {
      float sum = 0;
      for (int i = 0; i < kChunk; ++i) sum += values[i].v[k];  // zeros past the last row
      const float middle = __fmul_rn(sum, per_value);          // close to the mean; rounded before it is subtracted
      float away = 0, square = 0;
      for (unsigned i = 0; i < kChunk; ++i) {
        const float deviation = i < added ? values[i].v[k] - middle : 0.f;
        away += deviation;
        square += deviation * deviation;
      }
      const float correction = away * per_value;
      merge(own[k], count,
            {static_cast<double>(middle) + static_cast<double>(correction),
             static_cast<double>(square) - static_cast<double>(away) * static_cast<double>(correction)},
            share);
    }
    count += added;
  }

  merge_in_block(own, count, cut.lanes, means, squares, counts);
  if (threadIdx.x < cut.lanes && spot.channel < cut.channels) {
    double* const part = parts + static_cast<long long>(spot.part) * 2 * cut.channels + spot.channel;
    for (int k = 0; k < kWidth; ++k) part[k] = own[k].mean, part[cut.channels + k] = own[k].squares;
  }
  const unsigned tile = blockIdx.x % cut.tiles, first = tile * cut.lanes * kWidth;
  end_part<kNormThreads>({parts, nullptr, counters}, cut, end, spot.part, tile, cut.tiles, first,
                         min(first + cut.lanes * kWidth, cut.channels));
}

class MomentsOp final : public ReducingNormOp {
 public:
  explicit MomentsOp(const BatchNormMoments& desc) : ReducingNormOp(desc.x, kChunk, kBlocks), eps_(desc.eps) {}
  std::size_t workspace_bytes() const override { return parts_bytes(); }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<BatchNormMoments>(pointers);
    const MomentsEnd end{static_cast<double*>(args.moments), static_cast<double*>(eps_ ? args.stats : nullptr),
                         eps_.value_or(0)};
    over_values<true>(take_packs(args.x), [&]<typename T, int kWidth, bool kChannelsLast>(const NormCut& cut) {
      launch(over_parts("batch_norm_moments", cut, stream), moments_kernel<T, kWidth, kChannelsLast>, args.x, workspace,
             counters(), end, cut);
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
