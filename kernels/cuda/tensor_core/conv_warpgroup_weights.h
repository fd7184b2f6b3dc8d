// Weight gradient by wgmma. A block computes 64 x 64 channels for all nine taps; each warpgroup computes one row of the
// window. Each step copies a run of cells and the cells around it to shared memory. A tap reads them at an offset.
#pragma once

#include "kernels/cuda/tensor_core/spaced_images.h"
#include "ptx.h"

namespace dp::kernels::cuda {

struct WarpgroupWeights {
  SpacedImages images;
  int x_chunks, dy_chunks;  // of the channels
  int splits;               // of the sum over the cells

  static constexpr int kTapRows = 3, kTapColumns = 3;
  static constexpr int kThreads = kTapRows * 128;
  static constexpr int kStep = 128, kStages = 4;  // cells per step; stages in shared memory

  // A stage in rows of kRowChunks chunks: x with the cells around the run, then dy. Both start at a multiple of eight.
  __host__ __device__ static int x_rows(int width) { return (kStep + 2 * spaced_reach(width) + 7) / 8 * 8; }
  __host__ __device__ static int stage_rows(int width) { return x_rows(width) + kStep; }
  // Includes the bytes that align the first stage.
  __host__ __device__ static std::size_t bytes(int width) {
    return static_cast<std::size_t>(kStages) * stage_rows(width) * kRowChunks * 16 + kWgmmaAlignment;
  }
};
static_assert(std::has_unique_object_representations_v<WarpgroupWeights>);

// blockIdx: 64 channels of x, 64 channels of y, range of cells. out: as in multiply_windows().
template <typename Low>
__global__ void __launch_bounds__(WarpgroupWeights::kThreads, 1)
    conv_warpgroup_weights_kernel(const uint4* x, const uint4* dy, float* out, WarpgroupWeights weights) {
  using W = WarpgroupWeights;
  DP_DYNAMIC_SHARED(uint4, shared);
  uint4* const ring = wgmma_aligned(shared);
  const SpacedImages& images = weights.images;
  const int reach = spaced_reach(images.width);
  const int x_rows = W::x_rows(images.width), stage_chunks = W::stage_rows(images.width) * kRowChunks;
  const int all_steps = (images.all + W::kStep - 1) / W::kStep;
  const int each = (all_steps + weights.splits - 1) / weights.splits, split = static_cast<int>(blockIdx.z);
  const int begin = split * each, steps = min(each, all_steps - begin);
  const int thread = static_cast<int>(threadIdx.x), chunk = thread % kRowChunks;
  const int x_chunk = static_cast<int>(blockIdx.x) * kRowChunks, dy_chunk = static_cast<int>(blockIdx.y) * kRowChunks;

  // Row `reach` of x and row 0 of dy belong to the step's first cell.
  const auto load = [&](int step) {
    uint4* const stage = ring + step % W::kStages * stage_chunks;
    const int first = (begin + step) * W::kStep - reach;
#pragma unroll 1
    for (int row = thread / kRowChunks; row < W::kStep + 2 * reach; row += W::kThreads / kRowChunks) {
      const int cell = images.cell(first + row), own = row - reach;
      const bool is = cell >= 0;
      ptx::cp_async16(stage + swizzled<kRowChunks>(row, chunk),
                      x + (is ? cell * weights.x_chunks + x_chunk + chunk : 0), is);
      if (own >= 0 && own < W::kStep)
        ptx::cp_async16(stage + swizzled<kRowChunks>(x_rows + own, chunk),
                        dy + (is ? cell * weights.dy_chunks + dy_chunk + chunk : 0), is);
    }
  };

  constexpr int kAhead = W::kStages - 2;  // two stages may be read: by this step and by the previous one
  for (int step = 0; step < kAhead; ++step) {
    if (step < steps) load(step);
    ptx::cp_async_commit();
  }
  float sums[W::kTapColumns][32] = {};
#pragma unroll
  for (auto& of_tap : sums) ptx::fence_accumulators(of_tap);
  const int tap_row = thread / 128;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    ptx::cp_async_wait<kAhead - 1>();
    ptx::fence_async_proxy();
    __syncthreads();  // all threads see the step's copies; the wgmmas of step - 2 have completed
    if (step + kAhead < steps) load(step + kAhead);
    ptx::cp_async_commit();
    const uint4* const stage = ring + step % W::kStages * stage_chunks;
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < W::kStep; k += 16) {
      const uint4* const taps = stage + (tap_row * images.pitch + k) * kRowChunks;
      const std::uint64_t a = ptx::wgmma_descriptor(stage + (x_rows + k) * kRowChunks);
#pragma unroll
      for (int column = 0; column < W::kTapColumns; ++column)
        ptx::wgmma_m64n64k16<Low, false, false>(sums[column], a, ptx::wgmma_descriptor(taps + column * kRowChunks));
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
  }
  ptx::wgmma_wait<0>();
  ptx::cp_async_wait<0>();

  const int all_rows = kResidentTaps * weights.x_chunks * kChunk, lane = thread % 32;
  float* const results = out + static_cast<long long>(split) * all_rows * (weights.dy_chunks * kChunk);
#pragma unroll
  for (int column = 0; column < W::kTapColumns; ++column) {
    ptx::fence_accumulators(sums[column]);
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int col = dy_chunk * kChunk + thread % 128 / 32 * 16 + half * 8 + lane / 4;
        const int tap = tap_row * W::kTapColumns + column;
        const int row = (tap * weights.x_chunks + x_chunk) * kChunk + j * 8 + lane % 4 * 2;
        *reinterpret_cast<float2*>(results + static_cast<long long>(col) * all_rows + row) =
            make_float2(sums[column][j * 4 + half * 2], sums[column][j * 4 + half * 2 + 1]);
      }
  }
}

template <typename Low>
void enqueue_warpgroup_weights(cudaStream_t stream, const MmaWeights& weights, const void* x, const void* dy,
                               float* out) {
  const dim3 grid(blocks_for(weights.windows.chunks, kRowChunks), blocks_for(weights.out_chunks, kRowChunks),
                  static_cast<unsigned>(weights.splits));
  launch(
      {"conv_warpgroup_weights", grid, dim3(WarpgroupWeights::kThreads), stream,
       WarpgroupWeights::bytes(weights.windows.width)},
      conv_warpgroup_weights_kernel<Low>, static_cast<const uint4*>(x), static_cast<const uint4*>(dy), out,
      WarpgroupWeights{SpacedImages::of(weights.windows), weights.windows.chunks, weights.out_chunks, weights.splits});
}

}  // namespace dp::kernels::cuda
