// 3x3 convolutions with stride 1 and padding 1 on tensor cores, with cells that stay in shared memory. x and y
// have the same size. All taps of a run of cells are in that run or at most `reach` cells before or after it.
// A block copies these cells once and reads each tap at an offset. Taps outside the image read a row of zeros.
#pragma once

#include <algorithm>

#include "kernels/conv/cuda_mma_tile.h"

namespace dp::kernels::cuda {

inline constexpr int kResidentTaps = 9;
inline constexpr int kResidentChannels = 64;  // per row in shared memory
inline constexpr int kRowChunks = kResidentChannels / kChunk;

__host__ __device__ inline int reach_of(int width) { return width + 1; }

// Shared-memory row of a tap of cell `row` of a run: row + offset, or `zeros` if the tap is outside the image.
// `inside`: bit mask of the cell's taps inside the image.
__device__ __forceinline__ int tap_row(int row, unsigned inside, int tap, int offset, int zeros) {
  return (inside >> tap & 1u) != 0 ? row + offset : zeros;
}
// Distance from a cell to its tap, in cells.
__device__ __forceinline__ int tap_offset(const Windows& w, int tap) {
  return (w.origin_h + w.direction * (tap / 3)) * w.width + w.origin_w + w.direction * (tap % 3);
}

// Forward and data gradient of an image with 64 channels. A block keeps all weights in
// shared memory, and multiplies one run of 256 cells while it copies the next.

// Tile of a run. The resident kernels do not use its step and stages.
using ResidentTile = MmaTileSize<256, 64, 64, 32, 64, 2, 1>;

// Shared memory in rows of kRowChunks chunks: weights, two runs, one row of zeros.
struct ResidentRows {
  static constexpr int kWeights = kResidentTaps * kResidentChannels;
  static constexpr int kResults = ResidentTile::kRows * (ResidentTile::kCols + kChunk) / kResidentChannels;
  int run, zeros;

  __host__ __device__ explicit ResidentRows(int width) {
    const int cells = ResidentTile::kRows + 2 * reach_of(width);
    run = ((cells > kResults ? cells : kResults) + 7) / 8 * 8;
    zeros = kWeights + 2 * run;
  }
  __host__ __device__ std::size_t bytes() const { return static_cast<std::size_t>(zeros + 1) * kRowChunks * 16; }
};

// Copies the weights of 64 channels of the result, starting at chunk `first`. Layout for a forward:
// [channel of y][tap, channel of x]; for a data gradient: [tap, channel of y][channel of x].
template <bool data>
__device__ void load_weights(uint4* shared, const uint4* weights, const MmaProduct& product, int first) {
  for (int at = static_cast<int>(threadIdx.x); at < ResidentRows::kWeights * kRowChunks; at += ResidentTile::kThreads) {
    if constexpr (data) {
      const int row = at / kRowChunks, chunk = at % kRowChunks;
      const int tap = row / kResidentChannels, channel = row % kResidentChannels;
      const bool inside = first + chunk < product.out_chunks;
      ptx::cp_async16(shared + swizzled<kRowChunks>(row, chunk),
                      weights + (inside ? (channel * kResidentTaps + tap) * product.out_chunks + first + chunk : 0),
                      inside);
    } else {
      constexpr int kPitch = kResidentTaps * kRowChunks;
      const int row = at / kPitch, chunk = at % kPitch, channel = first * kChunk + row;
      const bool inside = channel < product.out_chunks * kChunk;
      ptx::cp_async16(shared + swizzled<kPitch>(row, chunk), weights + (inside ? channel * kPitch + chunk : 0), inside);
    }
  }
}

// blockIdx: block among those that share the runs, tile of channels of the result. The image has 64 channels.
// end(staged, sums, run) receives the sums of a run. It may overwrite `staged`, the run's rows of shared memory.
// landed(rows, run) may change the chunks of a run that this thread copied (every kThreads-th)
// before other threads read them. For a block's first run it is called before the multiplication.
// Later runs are changed during the multiplication of the previous run, by the two halves of the
// block at different taps, so that a scheduler still has a warp that multiplies.
template <typename Low, bool data, typename End, typename Landed = AsTheyLie>
__device__ __forceinline__ void multiply_runs(uint4* shared, const uint4* image, const uint4* weights,
                                              const MmaProduct& product, const End& end, const Landed& landed = {}) {
  using Tile = ResidentTile;
  const Windows& windows = product.parts[0];
  const int reach = reach_of(windows.width), first_chunk = static_cast<int>(blockIdx.y) * kRowChunks;
  const ResidentRows rows(windows.width);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int runs = (windows.cells + Tile::kRows - 1) / Tile::kRows, stride = static_cast<int>(gridDim.x);
  constexpr bool kChanges = !std::is_same_v<Landed, AsTheyLie>;
  const auto load_run = [&](int run, int first_row) {
    for (int at = thread; at < (Tile::kRows + 2 * reach) * kRowChunks; at += Tile::kThreads) {
      const int row = at / kRowChunks, cell = run * Tile::kRows - reach + row;
      const bool inside = cell >= 0 && cell < windows.cells;
      ptx::cp_async16(shared + swizzled<kRowChunks>(first_row + row, at % kRowChunks),
                      image + (inside ? static_cast<long long>(cell) * kRowChunks + at % kRowChunks : 0), inside);
    }
  };

  if (thread < kRowChunks) shared[rows.zeros * kRowChunks + thread] = make_uint4(0, 0, 0, 0);
  load_weights<data>(shared, weights, product, first_chunk);
  int run = static_cast<int>(blockIdx.x), here = ResidentRows::kWeights, next = here + rows.run;
  if (run < runs) load_run(run, here);
  ptx::cp_async_commit();
#pragma unroll 1
  for (; run < runs; run += stride) {
    if (run + stride < runs) load_run(run + stride, next);
    ptx::cp_async_commit();
    ptx::cp_async_wait<1>();
    if constexpr (kChanges)
      if (run == static_cast<int>(blockIdx.x)) landed(shared + here * kRowChunks, run);
    __syncthreads();

    unsigned inside[Tile::kDown];
#pragma unroll
    for (int i = 0; i < Tile::kDown; ++i) {
      const int m = run * Tile::kRows + warp_row<Tile>() + i * 16 + lane % 16;
      inside[i] = m < windows.cells ? windows.cell(m).taps : 0;
    }
    __syncwarp();
    MmaSums<Tile> sums = {};
#pragma unroll 1
    for (int tap = 0; tap < kResidentTaps; ++tap) {
      if constexpr (kChanges)
        if (tap == 5 + thread / (Tile::kThreads / 2) * 2 && run + stride < runs) {
          ptx::cp_async_wait<0>();
          landed(shared + next * kRowChunks, run + stride);
          __syncwarp();  // lanes may have diverged in landed(); ldmatrix needs the whole warp
        }
      const int offset = here + reach + tap_offset(windows, tap);
      int at[Tile::kDown];
#pragma unroll
      for (int i = 0; i < Tile::kDown; ++i)
        at[i] = tap_row(warp_row<Tile>() + i * 16 + lane % 16, inside[i], tap, offset, rows.zeros);
#pragma unroll
      for (int k = 0; k < kResidentChannels; k += 16) {
        unsigned a[Tile::kDown][4], b[Tile::kAcross / 2][4];
#pragma unroll
        for (int i = 0; i < Tile::kDown; ++i)
          ptx::ldmatrix_x4(a[i], shared + swizzled<kRowChunks>(at[i], k / kChunk + lane / 16));
#pragma unroll
        for (int j = 0; j < Tile::kAcross / 2; ++j)
          MmaOperand<!data, kResidentChannels, kResidentTaps * kResidentChannels>::take_b(
              shared, warp_col<Tile>() + j * 16, tap * kResidentChannels + k, b[j]);
        multiply_fragments<Low, Tile>(a, b, sums);
      }
    }
    __syncthreads();  // the run has been read by all threads; results overwrite it
    end(reinterpret_cast<unsigned*>(shared + here * kRowChunks), sums, run);
    __syncthreads();
    const int free = here;
    here = next, next = free;
  }
  ptx::cp_async_wait<0>();
}

template <typename Low, bool data>
__global__ void __launch_bounds__(ResidentTile::kThreads, ResidentTile::kBlocks)
    conv_mma_resident_kernel(const uint4* image, const uint4* weights, const float* bias, uint4* out,
                             MmaProduct product) {
  DP_DYNAMIC_SHARED(uint4, shared);
  multiply_runs<Low, data>(
      shared, image, weights, product, [&](unsigned* staged, const MmaSums<ResidentTile>& sums, int run) {
        store_results<Low, ResidentTile>(staged, sums, bias, out, product, product.parts[0], run * ResidentTile::kRows,
                                         static_cast<int>(blockIdx.y) * kRowChunks);
      });
}

// Grid: blocks that share the runs, tiles of channels of the result.
inline dim3 resident_grid(const MmaProduct& product, int multiprocessors) {
  const unsigned tiles = blocks_for(product.out_chunks, kRowChunks),
                 runs = blocks_for(product.parts[0].cells, ResidentTile::kRows);
  return dim3(std::clamp(static_cast<unsigned>(multiprocessors) / tiles, 1u, runs), tiles);
}

template <typename Low, bool data>
void enqueue_resident(cudaStream_t stream, const MmaProduct& product, int multiprocessors, const void* image,
                      const void* weights, const void* bias, void* out) {
  launch({data ? "conv_mma_resident_data" : "conv_mma_resident_forward", resident_grid(product, multiprocessors),
          dim3(ResidentTile::kThreads), stream, ResidentRows(product.parts[0].width).bytes()},
         conv_mma_resident_kernel<Low, data>, static_cast<const uint4*>(image), static_cast<const uint4*>(weights),
         static_cast<const float*>(bias), static_cast<uint4*>(out), product);
}

// Weight gradient of 64 x 64 channels per block for all nine taps, one warp per tap. The
// cells of x pass through a ring in shared memory; a block copies each cell once.

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
