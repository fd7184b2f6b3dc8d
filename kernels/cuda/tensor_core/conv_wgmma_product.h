// Forward and data gradient of 3x3 convolutions by wgmma, for images with multiples of 64 channels. A block computes
// runs of 256 cells, one after the other. The cells of a run and those around it are copied once for every 64 channels
// and stay for all nine taps. ldmatrix loads a tap's cells from any rows, so wgmma takes them from registers; the
// weights of a tap move through a ring of stages. While a block multiplies, it copies the next 64 channels or the next
// run.
#pragma once

#include "kernels/cuda/tensor_core/conv_mma_product.h"
#include "kernels/cuda/tensor_core/conv_mma_resident.h"
#include "kernels/cuda/tensor_core/spaced_images.h"

namespace dp::kernels::cuda {

// A warp has two accumulators of 16 cells. A step is 64 channels of one tap. The stages hold weights only.
template <int cols>
using WgmmaTile = MmaTileSize<256, cols, 32, cols, kResidentChannels, 4, 1>;

template <typename Tile>
inline constexpr bool kIsWgmmaTile = std::is_same_v<Tile, WgmmaTile<Tile::kCols>>;

// Shared memory in rows of kRowChunks chunks: stages of weights, two runs, one row of zeros, then results.
template <typename Tile>
struct WgmmaRows {
  static constexpr int kStage = Tile::kCols;  // weights of a step
  static constexpr int kAhead = 2;            // steps; two stages may be read: by this step and by the previous one
  static_assert(kAhead + 2 == Tile::kStages);
  // A thread copies at most two chunks of the next run in a step, and all of them arrive before its first step.
  static constexpr int kTurnRows = Tile::kThreads / kRowChunks, kMostTurns = 2 * (kResidentTaps - kAhead);
  static constexpr std::size_t kResultBytes = Tile::kRows * kStagedPitch<Tile> * sizeof(unsigned);
  int run, zeros;

  __host__ __device__ static int run_rows(int width) { return Tile::kRows + 2 * reach_of(width); }
  __host__ __device__ explicit WgmmaRows(int width) {
    run = (run_rows(width) + 7) / 8 * 8;
    zeros = Tile::kStages * kStage + 2 * run;
  }
  __device__ int of_run(int number) const { return Tile::kStages * kStage + number * run; }
  __device__ int results() const { return zeros + 1; }
  // Memory behind the results. `base`: the first row.
  __device__ uint4* behind(uint4* base) const { return base + results() * kRowChunks + kResultBytes / 16; }
  // Includes the bytes that align the first row.
  __host__ __device__ std::size_t bytes() const {
    return static_cast<std::size_t>(zeros + 1) * kRowChunks * 16 + kResultBytes + kWgmmaAlignment;
  }
  // Whether images of this width and `more` bytes of shared memory fit.
  static bool fits(int width, std::size_t more, std::size_t shared_memory) {
    return run_rows(width) <= kMostTurns * kTurnRows && WgmmaRows(width).bytes() + more <= shared_memory;
  }
};

// Copies of a block: the weights of its columns, and the cells of its runs. Successive chunks of a thread are a
// multiple of eight rows apart, so the swizzle moves all of them alike.
template <typename Tile, bool data>
class WgmmaCopies {
 public:
  __device__ WgmmaCopies(const uint4* image, const uint4* weights, const MmaProduct& product, const Windows& windows)
      : image_(image), weights_(weights), product_(product), windows_(windows) {}

  // The weights of one tap for 64 channels of the image, from chunk `first` on. Forward: a row is a column of the
  // result. Data gradient: a row is a channel of the image; the rows of the next 64 columns follow.
  __device__ __forceinline__ void weights(uint4* stage, int first, int tap) const {
    constexpr int kChunks = data ? kColumnChunks : kRowChunks;  // of a row in global memory
    constexpr int kRows = Tile::kThreads / kChunks;             // that all threads copy at once
    static_assert(kRows % 8 == 0);
    const int thread = static_cast<int>(threadIdx.x), row = thread / kChunks, chunk = thread % kChunks;
    const int first_chunk = static_cast<int>(blockIdx.y) * kColumnChunks, out_chunks = product_.out_chunks;
    const int channel = data ? first * kChunk + row : first_chunk * kChunk + row;
    const int pitch = data ? out_chunks : static_cast<int>(windows_.chunks);  // of a channel and tap
    const int from = (channel * kResidentTaps + tap) * pitch + (data ? first_chunk : first) + chunk;
    uint4* const to = stage + chunk / kRowChunks * kSlab + swizzled<kRowChunks>(row, chunk % kRowChunks);
#pragma unroll
    for (int i = 0; i < Tile::kCols * kRowChunks / Tile::kThreads; ++i) {
      const bool inside = data ? first_chunk + chunk < out_chunks : channel + i * kRows < out_chunks * kChunk;
      ptx::cp_async16(to + i * kRows * kRowChunks, weights_ + (inside ? from + i * kRows * kResidentTaps * pitch : 0),
                      inside);
    }
  }
  // Turn `turn` of the rows of a run: 64 channels from chunk `first` on. Row `reach` is the run's first cell.
  __device__ __forceinline__ void cells(uint4* rows, int run, int first, int turn) const {
    const int row = row_of(turn), cell = run * Tile::kRows - reach_of(windows_.width) + row;
    if (row >= WgmmaRows<Tile>::run_rows(windows_.width)) return;
    const bool inside = cell >= 0 && cell < windows_.cells;
    ptx::cp_async16(rows + own_chunk(turn), image_ + (inside ? cell * windows_.chunks + first + row_chunk() : 0),
                    inside);
  }
  // Calls to(chunk) for the chunk that this thread copied in the same turn of cells().
  template <typename To>
  __device__ __forceinline__ void change(uint4* rows, int turn, const To& to) const {
    if (row_of(turn) < WgmmaRows<Tile>::run_rows(windows_.width)) to(rows[own_chunk(turn)]);
  }
  // The descriptor of 16 channels of the image, from channel k of the stage on.
  __device__ static std::uint64_t descriptor(const uint4* stage, int k) {
    return data ? ptx::wgmma_descriptor(stage + k * kRowChunks, kSlab * 16) : ptx::wgmma_descriptor(stage + k / kChunk);
  }

 private:
  static constexpr int kColumnChunks = Tile::kCols / kChunk, kSlab = kResidentChannels * kRowChunks;
  static constexpr int kTurnRows = WgmmaRows<Tile>::kTurnRows;
  static_assert(kTurnRows % 8 == 0);

  __device__ static int row_chunk() { return static_cast<int>(threadIdx.x) % kRowChunks; }
  __device__ static int row_of(int turn) { return turn * kTurnRows + static_cast<int>(threadIdx.x) / kRowChunks; }
  __device__ static int own_chunk(int turn) {
    return turn * kTurnRows * kRowChunks + swizzled<kRowChunks>(row_of(0), row_chunk());
  }

  const uint4 *image_, *weights_;
  const MmaProduct& product_;
  const Windows& windows_;
};

struct Ignored {
  template <typename... Args>
  __device__ void operator()(const Args&...) const {}
};

// blockIdx: block among those that share the runs, tile of columns.
// end(staged, sums, run) receives the sums of a run. It may overwrite `staged`, a tile of results in shared memory.
// landed(chunk, number) may change the chunks that this thread copied, before other threads read them. `number`: of the
// chunk in its cell. It is called while wgmmas run, except for the first 64 channels of the block's first run.
// before(run) is called before the last 64 channels of a run are multiplied.
template <typename Low, typename Tile, bool data, typename End, typename Landed = Ignored, typename Before = Ignored>
__device__ __forceinline__ void multiply_runs_by_wgmma(uint4* shared, const uint4* image, const uint4* weights,
                                                       const MmaProduct& product, const End& end,
                                                       const Landed& landed = {}, const Before& before = {}) {
  using Rows = WgmmaRows<Tile>;
  constexpr bool kChanges = !std::is_same_v<Landed, Ignored>;
  constexpr int kHalf = Tile::kStep / 2 / 16;  // wgmmas of half a step, for each accumulator
  uint4* const base = wgmma_aligned(shared);
  const Windows& windows = product.parts[0];
  const Rows rows(windows.width);
  const WgmmaCopies<Tile, data> copies(image, weights, product, windows);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, reach = reach_of(windows.width);
  const int runs = (windows.cells + Tile::kRows - 1) / Tile::kRows, stride = static_cast<int>(gridDim.x);
  const int chunks = windows.chunks;  // of the image
  const auto stage_of = [&](int step) { return base + step % Tile::kStages * Rows::kStage * kRowChunks; };

  if (thread < kRowChunks) base[rows.zeros * kRowChunks + thread] = make_uint4(0, 0, 0, 0);
  int run = static_cast<int>(blockIdx.x), buffer = 0, step = 0;
  const int own_runs = (runs - run + stride - 1) / stride, steps = own_runs * (chunks / kRowChunks) * kResidentTaps;
#pragma unroll 1
  for (int turn = 0; turn < Rows::kMostTurns; ++turn) copies.cells(base + rows.of_run(0) * kRowChunks, run, 0, turn);
  for (int tap = 0; tap < Rows::kAhead; ++tap) {
    copies.weights(stage_of(tap), 0, tap);
    ptx::cp_async_commit();
  }
  int ahead_first = 0, ahead_tap = Rows::kAhead;  // of the weights that are copied next
  const auto change = [&](uint4* cells, int first, int turn) {
    copies.change(cells, turn, [&](uint4& chunk) { landed(chunk, first + thread % kRowChunks); });
  };
  if constexpr (kChanges) {
    ptx::cp_async_wait<Rows::kAhead - 1>();
#pragma unroll 1
    for (int turn = 0; turn < Rows::kMostTurns; ++turn) change(base + rows.of_run(0) * kRowChunks, 0, turn);
  }

  unsigned a[2][kHalf][Tile::kDown][4];  // of the two halves of a step
#pragma unroll 1
  for (; run < runs; run += stride) {
    MmaSums<Tile> sums = {};
    unsigned inside[Tile::kDown];
#pragma unroll
    for (int i = 0; i < Tile::kDown; ++i) {
      const int m = run * Tile::kRows + warp_row<Tile>() + i * 16 + lane % 16;
      inside[i] = m < windows.cells ? windows.cell(m).taps : 0;
#pragma unroll
      for (auto& four : sums[i]) ptx::fence_accumulators(four);
    }
#pragma unroll 1
    for (int first = 0; first < chunks; first += kRowChunks, buffer ^= 1) {
      const bool last = first + kRowChunks == chunks;
      const int next_run = last ? run + stride : run, next_first = last ? 0 : first + kRowChunks;
      uint4* const next = base + rows.of_run(buffer ^ 1) * kRowChunks;
      if (last) before(run);
#pragma unroll 1
      for (int tap = 0; tap < kResidentTaps; ++tap, ++step) {
        ptx::cp_async_wait<Rows::kAhead - 1>();
        ptx::fence_async_proxy();
        __syncthreads();  // all threads see the step's copies; the wgmmas of step - 2 have completed
        if (step + Rows::kAhead < steps) copies.weights(stage_of(step + Rows::kAhead), ahead_first, ahead_tap);
        if (++ahead_tap == kResidentTaps) {
          ahead_tap = 0, ahead_first += kRowChunks;
          if (ahead_first == chunks) ahead_first = 0;
        }
        if (next_run < runs && 2 * tap < Rows::kMostTurns) {
          copies.cells(next, next_run, next_first, 2 * tap);
          copies.cells(next, next_run, next_first, 2 * tap + 1);
        }
        ptx::cp_async_commit();

        const uint4* const stage = stage_of(step);
        const int offset = rows.of_run(buffer) + reach + tap_offset(windows, tap);
        int at[Tile::kDown];
#pragma unroll
        for (int i = 0; i < Tile::kDown; ++i)
          at[i] = tap_row(warp_row<Tile>() + i * 16 + lane % 16, inside[i], tap, offset, rows.zeros);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          ptx::wgmma_wait<1>();  // the wgmmas that read a[half] have completed
#pragma unroll
          for (int k = 0; k < kHalf; ++k)
#pragma unroll
            for (int i = 0; i < Tile::kDown; ++i)
              ptx::ldmatrix_x4(a[half][k][i], base + swizzled<kRowChunks>(at[i], (half * kHalf + k) * 2 + lane / 16));
          ptx::wgmma_fence();
#pragma unroll
          for (int k = 0; k < kHalf; ++k)
#pragma unroll
            for (int i = 0; i < Tile::kDown; ++i)
              ptx::wgmma_m64k16<Low, !data>(sums[i], a[half][k][i], copies.descriptor(stage, (half * kHalf + k) * 16));
          ptx::wgmma_commit();
        }
        if constexpr (kChanges)
          if (next_run < runs && tap >= Rows::kAhead) {  // the copies of kAhead steps ago have completed
            change(next, next_first, 2 * (tap - Rows::kAhead));
            change(next, next_first, 2 * (tap - Rows::kAhead) + 1);
            __syncwarp();  // lanes may have diverged; ldmatrix needs the whole warp
          }
      }
    }
    ptx::wgmma_wait<0>();
#pragma unroll
    for (auto& of_rows : sums)
#pragma unroll
      for (auto& four : of_rows) ptx::fence_accumulators(four);
    end(reinterpret_cast<unsigned*>(base + rows.results() * kRowChunks), sums, run);
  }
  ptx::cp_async_wait<0>();
}

template <typename Low, typename Tile, bool data>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    conv_wgmma_kernel(const uint4* image, const uint4* weights, const float* bias, uint4* out, MmaProduct product) {
  DP_DYNAMIC_SHARED(uint4, shared);
  multiply_runs_by_wgmma<Low, Tile, data>(
      shared, image, weights, product, [&](unsigned* staged, const MmaSums<Tile>& sums, int run) {
        store_results<Low, Tile>(staged, sums, bias, out, product, product.parts[0], run * Tile::kRows,
                                 static_cast<int>(blockIdx.y) * (Tile::kCols / kChunk));
      });
}

// Grid: blocks that share the runs, tiles of columns. Every block has at least one run.
template <typename Tile>
dim3 wgmma_grid(const MmaProduct& product, int multiprocessors) {
  const unsigned tiles = blocks_for(product.out_chunks, Tile::kCols / kChunk),
                 runs = blocks_for(product.parts[0].cells, Tile::kRows);
  return dim3(std::clamp(static_cast<unsigned>(multiprocessors) / tiles, 1u, runs), tiles);
}

template <typename Low, typename Tile, bool data>
void enqueue_wgmma(cudaStream_t stream, const MmaProduct& product, int multiprocessors, const void* image,
                   const void* weights, const void* bias, void* out) {
  launch({data ? "conv_wgmma_data" : "conv_wgmma_forward", wgmma_grid<Tile>(product, multiprocessors),
          dim3(Tile::kThreads), stream, WgmmaRows<Tile>(product.parts[0].width).bytes()},
         conv_wgmma_kernel<Low, Tile, data>, static_cast<const uint4*>(image), static_cast<const uint4*>(weights),
         static_cast<const float*>(bias), static_cast<uint4*>(out), product);
}

}  // namespace dp::kernels::cuda
