// BatchNormMoments in one pass: of a few values in float about their own mean, then merged in double as Chan et al. do for
// pairs, first within a thread, then within a block, then over the parts of the tensor, always in the same order.
#include "kernels/cuda/batch_norm_join.h"
#include "kernels/cuda/batch_norm_op.h"

namespace dp::kernels::cuda {
namespace {

constexpr int kChunk = 8;          // values that are summed in float
constexpr unsigned kBlocks = 256;  // about two for each multiprocessor of a large device

// `parts`: for each part the means, then the squares of all channels.
template <typename T, int kWidth, bool kChannelsLast>
__global__ void __launch_bounds__(kNormThreads) moments_kernel(const T* x, double* parts, NormCut cut) {
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
      for (int i = 0; i < kChunk; ++i) sum += values[i].v[k];  // zeros behind the last
      const float middle = __fmul_rn(sum, per_value);          // about the mean; rounded before it is taken away
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
  if (threadIdx.x >= cut.lanes || spot.channel >= cut.channels) return;
  double* const part = parts + static_cast<long long>(spot.part) * 2 * cut.channels + spot.channel;
  for (int k = 0; k < kWidth; ++k) part[k] = own[k].mean, part[cut.channels + k] = own[k].squares;
}

// blockIdx: group of `each` parts, channels. joined: for each group as for each part. count: null, or where the number of values goes.
__global__ void __launch_bounds__(kJoinThreads)
    join_moments_kernel(const double* parts, double* joined, double* count_of_all, NormCut cut, unsigned each) {
  DP_SHARED(double, means, [1][kJoinThreads]);
  DP_SHARED(double, squares, [1][kJoinThreads]);
  DP_SHARED(unsigned, counts, [kJoinThreads]);
  const unsigned lane = threadIdx.x / kJoinChannels, channel = blockIdx.y * kJoinChannels + threadIdx.x % kJoinChannels;
  const unsigned first = blockIdx.x * each, end = min(first + each, cut.parts);
  Moments own[1];
  unsigned count = 0;
  if (channel < cut.channels)
    for (unsigned part = first + lane; part < end; part += kJoinLanes) {
      const double* const from = parts + static_cast<long long>(part) * 2 * cut.channels + channel;
      const unsigned added = cut.part_size(part);
      merge(own[0], count, {from[0], from[cut.channels]},
            static_cast<double>(added) / static_cast<double>(count + added));
      count += added;
    }
  merge_in_block(own, count, kJoinChannels, means, squares, counts);
  if (lane != 0 || channel >= cut.channels) return;
  double* const to = joined + static_cast<long long>(blockIdx.x) * 2 * cut.channels + channel;
  to[0] = own[0].mean;
  to[cut.channels] = own[0].squares < 0 ? 0 : own[0].squares;  // by rounding; lets NaN through
  if (count_of_all != nullptr && channel == 0) *count_of_all = cut.rows;
}

class MomentsOp final : public NormOp {
 public:
  explicit MomentsOp(const BatchNormMoments& desc) : NormOp(desc.x, kChunk, kBlocks) {}
  std::size_t workspace_bytes() const override { return parts_bytes(); }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> args, void* workspace) override {
    const bool aligned = take_packs(args[0]);
    const NormCut& cut = over_values(aligned, [&]<typename T, int kWidth, bool kChannelsLast>(const NormCut& own) {
      launch(over_parts("batch_norm_moments", own, stream), moments_kernel<T, kWidth, kChannelsLast>, args[0],
             workspace, own);
    });
    enqueue_join_moments(stream, static_cast<const double*>(workspace), nullptr, static_cast<double*>(args[1]), cut);
  }
};

}  // namespace

void enqueue_join_moments(cudaStream_t stream, const double* parts, double* groups, double* moments,
                          const NormCut& cut) {
  const unsigned count = join_groups(cut);
  const auto over = [&](unsigned count_of_groups) {
    return Launch{"join_moments", dim3(count_of_groups, blocks_for(cut.channels, kJoinChannels)), dim3(kJoinThreads),
                  stream};
  };
  if (count == 0) return launch(over(1), join_moments_kernel, parts, moments + 1, moments, cut, cut.parts);
  launch(over(count), join_moments_kernel, parts, groups, nullptr, cut, kJoinGroup);
  NormCut grouped = cut;
  grouped.parts = count, grouped.part_rows = cut.part_rows * kJoinGroup;
  launch(over(1), join_moments_kernel, groups, moments + 1, moments, grouped, count);
}

std::unique_ptr<CudaOp> make(const BatchNormMoments& desc, const CudaOpOptions&) {
  return std::make_unique<MomentsOp>(desc);
}

}  // namespace dp::kernels::cuda
