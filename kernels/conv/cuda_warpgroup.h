// 3x3 convolutions with wgmma (sm_90a).
#pragma once

#include "kernels/conv/cuda_mma_resident.h"
#include "kernels/conv/cuda_mma_tile.h"
#include "ptx.h"

namespace dp::kernels::cuda {

// wgmma reads an operand as successive rows of shared memory, so a tap must have the same offset for every cell, also
// at the edge of an image. Therefore the wgmma kernels put zeros between the lines and between the images.

// Images of `width` x `height` cells. A cell of zeros follows each line, and a line of zeros follows each image.
struct SpacedImages {
  Count pitch, lines;      // width + 1, height + 1
  int width, height, all;  // all: number of cells of all images, including zeros

  // The images that `windows` describes.
  static SpacedImages of(const Windows& windows) {
    const Count pitch(windows.width + 1), lines(windows.height + 1);
    const int images = windows.cells / (windows.width * windows.height);
    return {pitch, lines, windows.width, windows.height, images * pitch * lines};
  }
  // Index of the cell in the tensor; -1 for zeros and outside all images.
  __device__ int cell(int at) const {
    if (at < 0 || at >= all) return -1;
    const int line = at / pitch, image = line / lines;
    const int h = line - image * lines, w = at - line * pitch;
    return h < height && w < width ? (image * height + h) * width + w : -1;
  }
};

// Largest offset of a tap of a 3x3 window, in cells.
__host__ __device__ inline int spaced_reach(int width) { return width + 2; }

// Bytes after which the swizzle pattern repeats.
inline constexpr int kWgmmaAlignment = 1024;
// Returns the first address from `shared` on that is a multiple of kWgmmaAlignment.
__device__ inline uint4* wgmma_aligned(uint4* shared) {
  return shared + (kWgmmaAlignment - ptx::shared_address(shared) % kWgmmaAlignment) % kWgmmaAlignment / 16;
}

// Forward and data gradient of 3x3 convolutions by wgmma, for images with multiples of 64 channels. A block computes
// runs of 256 cells, one after the other. The cells of a run and those around it are copied once for every 64 channels
// and stay for all nine taps. ldmatrix loads a tap's cells from any rows, so wgmma takes them from registers; the
// weights of a tap move through a ring of stages. While a block multiplies, it copies the next 64 channels or the next
// run.

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

// Forward and data gradient by wgmma, for an image with 64 channels. A block keeps all weights in shared memory. While
// it multiplies one run of cells, it copies the next run and stores the results of the previous one.

// Each warp has accumulators for 16 cells and 64 channels. The step and the stages are not used.
using WarpgroupTile = MmaTileSize<192, 64, 16, 64, 64, 3, 1>;

struct WarpgroupProduct {
  SpacedImages images;
  int out_chunks;  // of the result's channels
  int bias, relu;

  static constexpr int kStages = 3, kWeightRows = kResidentTaps * kResidentChannels;

  // Shared memory in rows of kRowChunks chunks. A stage holds a run and the cells around it.
  __host__ __device__ static int stage_rows(int width) {
    return (WarpgroupTile::kRows + 2 * spaced_reach(width) + 7) / 8 * 8;
  }
  __host__ __device__ static int rows(int width) { return kWeightRows + kStages * stage_rows(width); }
  // Includes the results of a run, and the bytes that align the first row.
  static std::size_t bytes(int width) {
    return static_cast<std::size_t>(rows(width)) * kRowChunks * 16 +
           WarpgroupTile::kRows * kStagedPitch<WarpgroupTile> * sizeof(unsigned) + kWgmmaAlignment;
  }
};
static_assert(std::has_unique_object_representations_v<WarpgroupProduct>);

// Copies the weights of 64 channels of the result, starting at chunk `first`. Layout: [tap, channel of y][channel of
// x]; each row has 64 channels.
template <bool data>
__device__ __forceinline__ void load_rows_of_weights(uint4* rows, const uint4* weights, int out_chunks, int first) {
  for (int at = static_cast<int>(threadIdx.x); at < WarpgroupProduct::kWeightRows * kRowChunks;
       at += WarpgroupTile::kThreads) {
    const int row = at / kRowChunks, chunk = at % kRowChunks;
    const int tap = row / kResidentChannels, channel = row % kResidentChannels + (data ? 0 : first * kChunk);
    const bool inside = data ? first + chunk < out_chunks : channel < out_chunks * kChunk;
    const int x_chunks = data ? out_chunks : kRowChunks;
    ptx::cp_async16(rows + swizzled<kRowChunks>(row, chunk),
                    weights + (inside ? (channel * kResidentTaps + tap) * x_chunks + (data ? first : 0) + chunk : 0),
                    inside);
  }
}

// Rounds a warp's accumulators and writes them to `out`. `staged`: 16 rows of shared memory, used by this warp only.
// first_cell: the warp's first cell in the spaced images.
template <typename Low>
__device__ __forceinline__ void store_rows(unsigned* staged, const float (&sums)[32], const float* bias, uint4* out,
                                           const WarpgroupProduct& product, int first_cell, int first_chunk) {
  using Tile = WarpgroupTile;
  constexpr int kPitch = kStagedPitch<Tile>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Ending ending{1, product.bias != 0, product.relu != 0, false, false};
#pragma unroll
  for (int j = 0; j < Tile::kAcross; ++j) {
    const int col = j * 8 + lane % 4 * 2, channel = first_chunk * kChunk + col;
    float biases[2] = {0, 0};
    if (product.bias != 0 && channel < product.out_chunks * kChunk)
      biases[0] = bias[channel], biases[1] = bias[channel + 1];
#pragma unroll
    for (int half = 0; half < 2; ++half)
      staged[(half * 8 + lane / 4) * kPitch + col / 2] = rounded_pair<Low>(
          ended(sums[j * 4 + half * 2], biases, 0, ending), ended(sums[j * 4 + half * 2 + 1], biases, 1, ending));
  }
  __syncwarp();
  const int chunk = lane % kRowChunks;
#pragma unroll
  for (int row = lane / kRowChunks; row < Tile::kWarpRows; row += 32 / kRowChunks) {
    const int cell = product.images.cell(first_cell + row);
    if (cell >= 0 && first_chunk + chunk < product.out_chunks)
      out[static_cast<long long>(cell) * product.out_chunks + first_chunk + chunk] =
          *reinterpret_cast<const uint4*>(staged + row * kPitch + chunk * 4);
  }
  __syncwarp();  // the next run overwrites `staged`
}

// blockIdx.x: the runs are distributed cyclically over the blocks; every block has at least one. blockIdx.y: tile of
// channels of the result.
template <typename Low, bool data>
__global__ void __launch_bounds__(WarpgroupTile::kThreads, 1)
    conv_warpgroup_kernel(const uint4* image, const uint4* weights, const float* bias, uint4* out,
                          WarpgroupProduct product) {
  using P = WarpgroupProduct;
  using Tile = WarpgroupTile;
  DP_DYNAMIC_SHARED(uint4, shared);
  uint4* const rows = wgmma_aligned(shared);
  const SpacedImages& images = product.images;
  const int reach = spaced_reach(images.width), stage_chunks = P::stage_rows(images.width) * kRowChunks;
  uint4* const stages = rows + P::kWeightRows * kRowChunks;
  const int thread = static_cast<int>(threadIdx.x), first_chunk = static_cast<int>(blockIdx.y) * kRowChunks;
  auto* const staged = reinterpret_cast<unsigned*>(rows + P::rows(images.width) * kRowChunks) +
                       thread / 32 * Tile::kWarpRows * kStagedPitch<Tile>;
  const int runs = (images.all + Tile::kRows - 1) / Tile::kRows, stride = static_cast<int>(gridDim.x);

  // Run number `turn` of this block.
  const auto run_of = [&](int turn) { return static_cast<int>(blockIdx.x) + turn * stride; };
  const auto load = [&](int turn) {
    uint4* const stage = stages + turn % P::kStages * stage_chunks;
    const int first = run_of(turn) * Tile::kRows - reach, chunk = thread % kRowChunks;
#pragma unroll 1
    for (int row = thread / kRowChunks; row < Tile::kRows + 2 * reach; row += Tile::kThreads / kRowChunks) {
      const int cell = images.cell(first + row);
      ptx::cp_async16(stage + swizzled<kRowChunks>(row, chunk),
                      image + (cell >= 0 ? static_cast<long long>(cell) * kRowChunks + chunk : 0), cell >= 0);
    }
  };
  const auto start_products = [&](float(&sums)[32], int turn) {
#pragma unroll
    for (float& sum : sums) sum = 0;
    ptx::fence_accumulators(sums);
    const uint4* const own = stages + (turn % P::kStages * stage_chunks + thread / 128 * 64 * kRowChunks);
    ptx::wgmma_fence();
#pragma unroll
    for (int tap = 0; tap < kResidentTaps; ++tap) {
      const int line = tap / 3, column = tap - line * 3;
      const uint4* const cells =
          own + (data ? (2 - line) * images.pitch + 2 - column : line * images.pitch + column) * kRowChunks;
      const uint4* const tap_rows = rows + tap * kResidentChannels * kRowChunks;
#pragma unroll
      for (int k = 0; k < kResidentChannels; k += 16)
        ptx::wgmma_m64n64k16<Low, true, !data>(sums, ptx::wgmma_descriptor(cells + k / kChunk),
                                               ptx::wgmma_descriptor(tap_rows + (data ? k * kRowChunks : k / kChunk)));
    }
  };
  const auto store = [&](int turn, float(&sums)[32]) {
    ptx::fence_accumulators(sums);
    store_rows<Low>(staged, sums, bias, out, product, run_of(turn) * Tile::kRows + thread / 32 * Tile::kWarpRows,
                    first_chunk);
  };
  // Starts the wgmmas of a run and stores the results of the previous run.
  const auto step = [&](int turn, float(&sums)[32], float(&before)[32]) {
    ptx::cp_async_wait<0>();
    ptx::fence_async_proxy();
    __syncthreads();  // all threads see the run's copies; the wgmmas of run turn - 2 have completed
    if (run_of(turn + 1) < runs) load(turn + 1);
    ptx::cp_async_commit();
    start_products(sums, turn);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    if (turn > 0) store(turn - 1, before);
  };

  load_rows_of_weights<data>(rows, weights, product.out_chunks, first_chunk);
  load(0);
  ptx::cp_async_commit();
  float sums[2][32];
#pragma unroll 1
  for (int turn = 0;; turn += 2) {
    step(turn, sums[0], sums[1]);
    if (run_of(turn + 1) >= runs) {
      ptx::wgmma_wait<0>();
      return store(turn, sums[0]);
    }
    step(turn + 1, sums[1], sums[0]);
    if (run_of(turn + 2) >= runs) {
      ptx::wgmma_wait<0>();
      return store(turn + 1, sums[1]);
    }
  }
}

template <typename Low, bool data>
void enqueue_warpgroup(cudaStream_t stream, const MmaProduct& product, int multiprocessors, const void* image,
                       const void* weights, const void* bias, void* out) {
  const WarpgroupProduct own{SpacedImages::of(product.parts[0]), product.out_chunks, product.bias, product.relu};
  const unsigned tiles = blocks_for(own.out_chunks, kRowChunks),
                 runs = blocks_for(own.images.all, WarpgroupTile::kRows);
  const dim3 grid(std::clamp(static_cast<unsigned>(multiprocessors) / tiles, 1u, runs), tiles);
  launch({data ? "conv_warpgroup_data" : "conv_warpgroup_forward", grid, dim3(WarpgroupTile::kThreads), stream,
          WarpgroupProduct::bytes(own.images.width)},
         conv_warpgroup_kernel<Low, data>, static_cast<const uint4*>(image), static_cast<const uint4*>(weights),
         static_cast<const float*>(bias), static_cast<uint4*>(out), own);
}

// Weight gradient by wgmma. A block computes 64 x 64 channels for all nine taps; each warpgroup computes one row of the
// window. Each step copies a run of cells and the cells around it to shared memory. A tap reads them at an offset.

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
