// Weight gradient of 64 x 64 channels per block for all nine taps, one warp per tap. The
// cells of x pass through a ring in shared memory; a block copies each cell once.
#pragma once

#include "kernels/cuda/tensor_core/conv_mma_resident.h"

namespace dp::kernels::cuda {

struct ResidentWeights {
  static constexpr int kThreads = kResidentTaps * 32;
  static constexpr int kStep = 64, kStages = 3;  // cells per step; stages of dy in shared memory
  static constexpr int kDown = kResidentChannels / 16, kAcross = kResidentChannels / 8;
  static constexpr int kDyRows = kStages * kStep;
  static constexpr std::size_t kMaskBytes = kStages * kStep * sizeof(unsigned);  // tap masks; not part of bytes()

  // Shared memory in rows of kRowChunks chunks: the ring of x, eight rows for the zeros (one is used), dy.
  __host__ __device__ static int ring(int width) { return (kStages * kStep + 2 * reach_of(width) + 7) / 8 * 8; }
  __host__ __device__ static std::size_t bytes(int width) {
    return static_cast<std::size_t>(ring(width) + 8 + kDyRows) * kRowChunks * 16;
  }
};

// Leaves the cells of x unchanged.
struct CellsAsTheyLie {
  __device__ void operator()(uint4&) const {}
};

// blockIdx: 64 channels of x, 64 channels of y, range of cells. out: as in multiply_windows(). landed(chunk)
// may change a chunk of x before other threads read it; it is chunk threadIdx.x % kRowChunks of its row.
template <typename Low, typename Landed>
__device__ __forceinline__ void multiply_all_taps(uint4* shared, const uint4* x, const uint4* dy, float* out,
                                                  const MmaWeights& weights, const Landed& landed) {
  using R = ResidentWeights;
  DP_SHARED(unsigned, inside, [R::kStages][R::kStep]);  // per cell: mask of the taps inside the image
  const Windows& windows = weights.windows;
  const int reach = reach_of(windows.width), ring = R::ring(windows.width), zeros = ring, dy_rows = ring + 8;
  const int all_steps = (windows.cells + R::kStep - 1) / R::kStep;
  const int each = (all_steps + weights.splits - 1) / weights.splits, split = static_cast<int>(blockIdx.z);
  const int begin = split * each, steps = min(each, all_steps - begin);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, tap = thread / 32;
  const int x_chunk = static_cast<int>(blockIdx.x) * kRowChunks, dy_chunk = static_cast<int>(blockIdx.y) * kRowChunks;
  const int x_chunks = windows.chunks;

  // Row 0 of x is the cell `reach` before the block's first cell. Row i is stored at row i % ring.
  const auto load_x = [&](int first_row, int count) {
#pragma unroll 1
    for (int at = thread; at < count * kRowChunks; at += R::kThreads) {
      const int row = first_row + at / kRowChunks, cell = begin * R::kStep - reach + row;
      const bool is = cell >= 0 && cell < windows.cells;
      ptx::cp_async16(shared + swizzled<kRowChunks>(row % ring, at % kRowChunks),
                      x + (is ? cell * x_chunks + x_chunk + at % kRowChunks : 0), is);
    }
  };
  const auto load = [&](int step) {
    if (step == 0)
      load_x(0, R::kStep + 2 * reach);
    else
      load_x(step * R::kStep + 2 * reach, R::kStep);
    const int stage = step % R::kStages;
#pragma unroll 1
    for (int at = thread; at < R::kStep * kRowChunks; at += R::kThreads) {
      const int row = at / kRowChunks, cell = (begin + step) * R::kStep + row;
      const bool is = cell < windows.cells;
      ptx::cp_async16(shared + swizzled<kRowChunks>(dy_rows + stage * R::kStep + row, at % kRowChunks),
                      dy + (is ? cell * weights.out_chunks + dy_chunk + at % kRowChunks : 0), is);
    }
    if (thread < R::kStep) {
      const int cell = (begin + step) * R::kStep + thread;
      inside[stage][thread] = cell < windows.cells ? windows.cell(cell).taps : 0;
    }
  };

  // Calls landed() for the chunks of x that this thread copied in load(step). `base`: the
  // step's first row in the ring. Rows without a cell are changed too, but they are never read.
  const auto change = [&](int step, int base) {
    static_assert(R::kThreads % kRowChunks == 0);
    const int first = base + (step == 0 ? 0 : 2 * reach), end = first + R::kStep + (step == 0 ? 2 * reach : 0);
#pragma unroll 1
    for (int row = first + thread / kRowChunks; row < end; row += R::kThreads / kRowChunks)
      landed(shared[swizzled<kRowChunks>(row < ring ? row : row - ring, thread % kRowChunks)]);
  };

  if (thread < kRowChunks) shared[zeros * kRowChunks + thread] = make_uint4(0, 0, 0, 0);
  constexpr int kAhead = R::kStages - 1;
  for (int step = 0; step < kAhead; ++step) {
    if (step < steps) load(step);
    ptx::cp_async_commit();
  }
  MmaSums<R> sums = {};
  const int offset = reach + tap_offset(windows, tap);
  int base = 0;  // first row of the step in the ring
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    ptx::cp_async_wait<kAhead - 1>();
    if constexpr (!std::is_same_v<Landed, CellsAsTheyLie>) change(step, base);
    __syncthreads();  // the step's copies are visible to all; rows that only the previous step read are free
    if (step + kAhead < steps) load(step + kAhead);
    ptx::cp_async_commit();
    const int stage = step % R::kStages;
#pragma unroll 1  // unrolled code needs too many registers for three warps per scheduler
    for (int k = 0; k < R::kStep; k += 16) {
      const int cell = k + lane % 8 + lane / 16 * 8;
      int row = tap_row(base + cell, inside[stage][cell], tap, offset, -1);
      row = row < 0 ? zeros : row < ring ? row : row - ring;
      unsigned a[R::kDown][4];
#pragma unroll
      for (int i = 0; i < R::kDown; ++i)
        ptx::ldmatrix_x4_trans(a[i], shared + swizzled<kRowChunks>(row, i * 2 + lane / 8 % 2));
#pragma unroll
      for (int j = 0; j < R::kAcross; j += 2) {
        unsigned b[4];
        MmaOperand<false, kResidentChannels, R::kStep>::take_b(shared + (dy_rows + stage * R::kStep) * kRowChunks,
                                                               j * 8, k, b);
#pragma unroll
        for (int i = 0; i < R::kDown; ++i)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const unsigned pair[2] = {b[half * 2], b[half * 2 + 1]};
            mma<Low>(sums[i][j + half], a[i], pair);
          }
      }
    }
    base += R::kStep;
    if (base >= ring) base -= ring;
  }
  ptx::cp_async_wait<0>();

  const int all_rows = kResidentTaps * x_chunks * kChunk, all_cols = weights.out_chunks * kChunk;
  float* const results = out + static_cast<long long>(split) * all_rows * all_cols;
#pragma unroll
  for (int i = 0; i < R::kDown; ++i)
#pragma unroll
    for (int j = 0; j < R::kAcross; ++j)
#pragma unroll
      for (int at = 0; at < 4; ++at) {
        const int row = (tap * x_chunks + x_chunk) * kChunk + i * 16 + at / 2 * 8 + lane / 4;
        const int col = dy_chunk * kChunk + j * 8 + lane % 4 * 2 + at % 2;
        results[static_cast<long long>(col) * all_rows + row] = sums[i][j][at];
      }
}

template <typename Low>
__global__ void __launch_bounds__(ResidentWeights::kThreads, 1)
    conv_mma_resident_weights_kernel(const uint4* x, const uint4* dy, float* out, MmaWeights weights) {
  DP_DYNAMIC_SHARED(uint4, shared);
  multiply_all_taps<Low>(shared, x, dy, out, weights, CellsAsTheyLie{});
}

inline dim3 resident_grid(const MmaWeights& weights) {
  return dim3(blocks_for(weights.windows.chunks, kRowChunks), blocks_for(weights.out_chunks, kRowChunks),
              static_cast<unsigned>(weights.splits));
}

template <typename Low>
void enqueue_resident_weights(cudaStream_t stream, const MmaWeights& weights, const void* x, const void* dy,
                              float* out) {
  launch({"conv_mma_resident_weights", resident_grid(weights), dim3(ResidentWeights::kThreads), stream,
          ResidentWeights::bytes(weights.windows.width)},
         conv_mma_resident_weights_kernel<Low>, static_cast<const uint4*>(x), static_cast<const uint4*>(dy), out,
         weights);
}

}  // namespace dp::kernels::cuda
