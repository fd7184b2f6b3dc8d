// Tile kernels of convolutions on tensor cores: operands in shared memory, product and epilogue.
#pragma once

#include "device_code.h"
#include "kernels/conv/cuda_mma_choice.h"
#include "kernels/conv/cuda_mma_windows.h"
#include "kernels/linear/cuda_gemm_tile.h"
#include "kernels/low_float.h"
#include "kernels/norm/cuda.h"
#include "ptx.h"

namespace dp::kernels::cuda {

// Conversion of a chunk of eight 16-bit values to floats and back, and its batch normalisation.

template <typename Low>
__device__ __forceinline__ unsigned rounded_pair(float low, float high) {
  if constexpr (std::is_same_v<Low, BFloat16>)
    return ptx::pack_bf16(low, high);
  else
    return ptx::pack_f16(low, high);
}

template <typename Low>
__device__ __forceinline__ float2 floats_of(unsigned pair) {
  if constexpr (std::is_same_v<Low, BFloat16>)
    return make_float2(to_float(BFloat16{static_cast<std::uint16_t>(pair & 0xffffu)}),
                       to_float(BFloat16{static_cast<std::uint16_t>(pair >> 16)}));
  else
    return ptx::unpack_f16(pair);
}

struct ChunkValues {
  float v[kChunk];
};
template <typename Low>
__device__ __forceinline__ ChunkValues values_of(const uint4& chunk) {
  const float2 pairs[] = {floats_of<Low>(chunk.x), floats_of<Low>(chunk.y), floats_of<Low>(chunk.z),
                          floats_of<Low>(chunk.w)};
  ChunkValues values;
  for (int k = 0; k < kChunk; ++k) values.v[k] = k % 2 == 0 ? pairs[k / 2].x : pairs[k / 2].y;
  return values;
}
template <typename Low>
__device__ __forceinline__ uint4 rounded(const ChunkValues& values) {
  const auto pair = [&](int k) { return rounded_pair<Low>(values.v[k], values.v[k + 1]); };
  return make_uint4(pair(0), pair(2), pair(4), pair(6));
}

// NormAffine of neighbouring channels, in shared memory.
template <int channels>
struct NormNumbers {
  float shift[channels], scale[channels], offset[channels];

  __device__ void set(int at, const NormAffine& own) {
    shift[at] = own.shift, scale[at] = own.scale, offset[at] = own.offset;
  }
  // max(0, x normalised) for eight channels starting at `at`; not rounded.
  __device__ ChunkValues rectified_chunk(int at, const ChunkValues& x) const {
    ChunkValues z;
    for (int k = 0; k < kChunk; ++k)
      z.v[k] = rectified(normalized(x.v[k], shift[at + k], scale[at + k], offset[at + k]));
    return z;
  }
};

// One tile of a product on tensor cores. Asynchronous copies load the operands to a ring of stages
// in shared memory; ldmatrix loads them to registers; each warp multiplies its part of the tile.

template <int rows, int cols, int warp_rows, int warp_cols, int step, int stages, int blocks>
struct MmaTileSize {
  static constexpr int kRows = rows, kCols = cols, kWarpRows = warp_rows, kWarpCols = warp_cols;
  static constexpr int kStep = step, kStages = stages;  // elements of k; stages in shared memory
  static constexpr int kWarpsDown = rows / warp_rows, kWarpsAcross = cols / warp_cols;
  static constexpr int kThreads = kWarpsDown * kWarpsAcross * 32;
  static constexpr int kBlocks = blocks;                                 // per multiprocessor, at least
  static constexpr int kDown = warp_rows / 16, kAcross = warp_cols / 8;  // mma products per warp
  static constexpr int kChunksA = rows * step / kChunk, kChunksB = cols * step / kChunk;
  static constexpr int kStageChunks = kChunksA + kChunksB;
  static constexpr std::size_t kSharedBytes = static_cast<std::size_t>(stages) * kStageChunks * 16;
};
using LargeMmaTile = MmaTileSize<128, 128, 64, 64, 32, 4, 2>;
using TallMmaTile = MmaTileSize<256, 64, 64, 64, 32, 4, 2>;
using MiddleMmaTile = MmaTileSize<128, 64, 64, 32, 64, 3, 3>;
using SmallMmaTile = MmaTileSize<64, 64, 32, 32, 64, 3, 4>;

template <typename Tile>
using MmaSums = float[Tile::kDown][Tile::kAcross][4];

// Index of a chunk in a tile with `pitch` chunks per row. The swizzle avoids bank conflicts: equal chunks of eight
// successive rows (read by ldmatrix) and eight neighbouring chunks (written by copies) each cover all 32 banks once.
template <int pitch>
__device__ __forceinline__ int swizzled(int row, int chunk) {
  static_assert(pitch == 4 || pitch % 8 == 0);
  return row * pitch + (chunk ^ (pitch == 4 ? row / 2 % 4 : row % 8));
}

template <typename Low>
__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  if constexpr (std::is_same_v<Low, BFloat16>)
    ptx::mma_m16n8k16_bf16(d, a, b);
  else
    ptx::mma_m16n8k16_f16(d, a, b);
}

// One operand of a tile; `lines`: rows of a, columns of b. along: stored as [line][k]; otherwise as [k][line].
template <bool along, int lines, int step>
struct MmaOperand {
  static constexpr int kPitch = (along ? step : lines) / kChunk;

  // Loads 16 lines x 16 k's as the first operand of mma.
  __device__ static void take_a(const uint4* tile, int line, int k, unsigned (&fragments)[4]) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if constexpr (along)
      ptx::ldmatrix_x4(fragments, tile + swizzled<kPitch>(line + lane % 16, k / kChunk + lane / 16));
    else
      ptx::ldmatrix_x4_trans(fragments,
                             tile + swizzled<kPitch>(k + lane % 8 + lane / 16 * 8, line / kChunk + lane / 8 % 2));
  }
  // Loads 16 lines x 16 k's as two second operands of mma, eight lines each: fragments 0 and 1, fragments 2 and 3.
  __device__ static void take_b(const uint4* tile, int line, int k, unsigned (&fragments)[4]) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if constexpr (along)
      ptx::ldmatrix_x4(fragments, tile + swizzled<kPitch>(line + lane % 8 + lane / 16 * 8, k / kChunk + lane / 8 % 2));
    else
      ptx::ldmatrix_x4_trans(fragments,
                             tile + swizzled<kPitch>(k + lane % 8 + lane / 8 % 2 * 8, line / kChunk + lane / 16));
  }
};

template <typename Tile>
__device__ __forceinline__ int warp_row() {
  return static_cast<int>(threadIdx.x) / 32 / Tile::kWarpsAcross * Tile::kWarpRows;
}
template <typename Tile>
__device__ __forceinline__ int warp_col() {
  return static_cast<int>(threadIdx.x) / 32 % Tile::kWarpsAcross * Tile::kWarpCols;
}

// sums += a b, for the fragments of a warp.
template <typename Low, typename Tile>
__device__ __forceinline__ void multiply_fragments(const unsigned (&a)[Tile::kDown][4],
                                                   const unsigned (&b)[Tile::kAcross / 2][4], MmaSums<Tile>& sums) {
#pragma unroll
  for (int i = 0; i < Tile::kDown; ++i)
#pragma unroll
    for (int j = 0; j < Tile::kAcross; ++j) {
      const unsigned pair[2] = {b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]};
      mma<Low>(sums[i][j], a[i], pair);
    }
}

// Leaves the operands unchanged.
struct AsTheyLie {
  __device__ void operator()(uint4*, int) const {}
};

// Adds all steps to `sums`, in order of k. load(stage, step) issues the copies of a step: the
// chunks of a, then those of b. landed(stage, step) may change the chunks that this thread copied
// before other threads read them. On return no copy is in flight and no thread reads `ring`.
template <typename Low, typename Tile, bool along_a, bool along_b, typename Load, typename Landed = AsTheyLie>
__device__ __forceinline__ void multiply(uint4* ring, int steps, const Load& load, MmaSums<Tile>& sums,
                                         const Landed& landed = {}) {
  using A = MmaOperand<along_a, Tile::kRows, Tile::kStep>;
  using B = MmaOperand<along_b, Tile::kCols, Tile::kStep>;
  constexpr int kAhead = Tile::kStages - 1;
  for (int step = 0; step < kAhead; ++step) {
    if (step < steps) load(ring + step * Tile::kStageChunks, step);
    ptx::cp_async_commit();  // an empty group keeps the number of groups constant
  }
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    ptx::cp_async_wait<kAhead - 1>();
    landed(ring + step % Tile::kStages * Tile::kStageChunks, step);
    __syncthreads();  // the step's copies are visible to all; the previous step's stage is free
    if (step + kAhead < steps) load(ring + (step + kAhead) % Tile::kStages * Tile::kStageChunks, step + kAhead);
    ptx::cp_async_commit();
    const uint4* const a_tile = ring + step % Tile::kStages * Tile::kStageChunks;
    const uint4* const b_tile = a_tile + Tile::kChunksA;
#pragma unroll
    for (int k = 0; k < Tile::kStep; k += 16) {
      unsigned a[Tile::kDown][4], b[Tile::kAcross / 2][4];
#pragma unroll
      for (int i = 0; i < Tile::kDown; ++i) A::take_a(a_tile, warp_row<Tile>() + i * 16, k, a[i]);
#pragma unroll
      for (int j = 0; j < Tile::kAcross / 2; ++j) B::take_b(b_tile, warp_col<Tile>() + j * 16, k, b[j]);
      multiply_fragments<Low, Tile>(a, b, sums);
    }
  }
  ptx::cp_async_wait<0>();
  __syncthreads();
}

// Copies of operands to a stage in shared memory. Each class determines which chunks a thread
// copies and from where. The chunks of a step are distributed cyclically over the threads.

// Windows of cells, [cell][k], k over (tap, channel): the first operand of forward and data gradient.
template <typename Tile>
class WindowRows {
 public:
  // `taps`: array of kTapPlaces in shared memory.
  __device__ WindowRows(const uint4* image, const Windows& windows, const Tap* taps, int first_row)
      : image_(image), chunks_(windows.chunks), taps_(taps) {
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const int row = first_row + row_of(i);
      cells_[i] = row < windows.cells ? windows.cell(row) : Cell{0, 0};
    }
  }
  __device__ void load(uint4* tile, int step) const {
    const int at = static_cast<int>(threadIdx.x) % kPitch, k = step * kPitch + at;
    const int tap = min(k / chunks_, kTapPlaces - 1);  // past the last tap: no cell has it
    const int offset = taps_[tap].image + k - tap * chunks_;
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const bool inside = (cells_[i].taps >> tap & 1u) != 0;
      ptx::cp_async16(tile + swizzled<kPitch>(row_of(i), at), image_ + (inside ? cells_[i].offset + offset : 0),
                      inside);
    }
  }
  // Calls to(chunk) for each chunk inside the image that this thread copied in load(tile,
  // step). All of them are chunk own_chunk(step) of their cells.
  template <typename To>
  __device__ void change(uint4* tile, int step, const To& to) const {
    const int at = static_cast<int>(threadIdx.x) % kPitch, tap = min((step * kPitch + at) / chunks_, kTapPlaces - 1);
#pragma unroll
    for (int i = 0; i < kTurns; ++i)
      if ((cells_[i].taps >> tap & 1u) != 0) to(tile[swizzled<kPitch>(row_of(i), at)]);
  }
  __device__ int own_chunk(int step) const {
    return (step * kPitch + static_cast<int>(threadIdx.x) % kPitch) % chunks_;
  }

 private:
  static constexpr int kPitch = Tile::kStep / kChunk, kTurns = Tile::kChunksA / Tile::kThreads;
  static_assert(Tile::kThreads % kPitch == 0 && kTurns * Tile::kThreads == Tile::kChunksA);
  __device__ static int row_of(int turn) {
    return turn * (Tile::kThreads / kPitch) + static_cast<int>(threadIdx.x) / kPitch;
  }

  const uint4* image_;
  const Count& chunks_;
  const Tap* taps_;
  Cell cells_[kTurns];
};

// A dense matrix with `lines` rows of `depth` chunks, [line][k]: the weights of a forward.
template <typename Tile>
class DenseRows {
 public:
  __device__ DenseRows(const uint4* matrix, int lines, int depth, int first_line)
      : matrix_(matrix), depth_(depth), first_(first_line), lines_(lines) {}
  __device__ void load(uint4* tile, int step) const {
    const int thread = static_cast<int>(threadIdx.x), at = thread % kPitch, k = step * kPitch + at;
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const int row = i * (Tile::kThreads / kPitch) + thread / kPitch, line = first_ + row;
      const bool inside = line < lines_ && k < depth_;
      ptx::cp_async16(tile + swizzled<kPitch>(row, at), matrix_ + (inside ? line * depth_ + k : 0), inside);
    }
  }

 private:
  static constexpr int kPitch = Tile::kStep / kChunk, kTurns = Tile::kChunksB / Tile::kThreads;
  static_assert(Tile::kThreads % kPitch == 0 && kTurns * Tile::kThreads == Tile::kChunksB);
  const uint4* matrix_;
  int depth_, first_, lines_;
};

// The weights of a data gradient, [k][channel of x], k over (tap, channel of y).
template <typename Tile>
class WeightColumns {
 public:
  __device__ WeightColumns(const uint4* weights, const MmaProduct& product, const Windows& windows, const Tap* taps,
                           int first_chunk)
      : weights_(weights),
        channels_(product.channels),
        taps_(taps),
        chunks_(product.out_chunks),
        all_taps_(product.all_taps),
        depth_(windows.taps() * product.channels),
        chunk_(first_chunk + static_cast<int>(threadIdx.x) % kPitch) {}
  __device__ void load(uint4* tile, int step) const {
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const int row = i * (Tile::kThreads / kPitch) + thread / kPitch, k = step * Tile::kStep + row;
      const bool inside = k < depth_ && chunk_ < chunks_;
      const int tap = inside ? k / channels_ : 0;
      const int offset = ((k - tap * channels_) * all_taps_ + taps_[tap].weights) * chunks_ + chunk_;
      ptx::cp_async16(tile + swizzled<kPitch>(row, thread % kPitch), weights_ + (inside ? offset : 0), inside);
    }
  }

 private:
  static constexpr int kPitch = Tile::kCols / kChunk, kTurns = Tile::kChunksB / Tile::kThreads;
  static_assert(Tile::kThreads % kPitch == 0 && kTurns * Tile::kThreads == Tile::kChunksB);
  const uint4* weights_;
  const Count& channels_;
  const Tap* taps_;
  int chunks_, all_taps_, depth_, chunk_;
};

// Windows of cells, [cell][tap, channel]: the first operand of a weight gradient, whose sum runs over the cells.
template <typename Tile>
class WindowColumns {
 public:
  using Cells = Cell[Tile::kStages][Tile::kStep];

  // `cells`: in shared memory, filled by find().
  __device__ WindowColumns(const uint4* image, const Windows& windows, Cells& cells, int first_chunk, int first_step)
      : image_(image), windows_(windows), cells_(cells), first_step_(first_step) {
    const int chunk = first_chunk + static_cast<int>(threadIdx.x) % kPitch;
    tap_ = min(chunk / windows.chunks, kTapPlaces - 1);
    if (tap_ >= windows.taps()) tap_ = kTapPlaces - 1;  // no cell has this tap
    offset_ = windows.tap(tap_).image + chunk - tap_ * windows.chunks;
  }
  // Finds the cells of a step. A barrier must follow before load(.., step). The slot is
  // shared with step - kStages, whose load() and change() must be done.
  __device__ void find(int step) const {
    const int i = static_cast<int>(threadIdx.x), m = (first_step_ + step) * Tile::kStep + i;
    if (i < Tile::kStep) cells_[step % Tile::kStages][i] = m < windows_.cells ? windows_.cell(m) : Cell{0, 0};
  }
  __device__ void load(uint4* tile, int step) const {
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const int row = i * (Tile::kThreads / kPitch) + thread / kPitch;
      const Cell cell = cells_[step % Tile::kStages][row];
      const bool inside = (cell.taps >> tap_ & 1u) != 0;
      ptx::cp_async16(tile + swizzled<kPitch>(row, thread % kPitch), image_ + (inside ? cell.offset + offset_ : 0),
                      inside);
    }
  }
  // Calls to(chunk) for each chunk inside the image that this thread copied in load(tile,
  // step). All of them are chunk own_place() of their rows. Must precede find(step + kStages).
  template <typename To>
  __device__ void change(uint4* tile, int step, const To& to) const {
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const int row = i * (Tile::kThreads / kPitch) + static_cast<int>(threadIdx.x) / kPitch;
      if ((cells_[step % Tile::kStages][row].taps >> tap_ & 1u) != 0) to(tile[swizzled<kPitch>(row, own_place())]);
    }
  }
  __device__ static int own_place() { return static_cast<int>(threadIdx.x) % kPitch; }

 private:
  static constexpr int kPitch = Tile::kRows / kChunk, kTurns = Tile::kChunksA / Tile::kThreads;
  static_assert(Tile::kThreads % kPitch == 0 && kTurns * Tile::kThreads == Tile::kChunksA);
  static_assert(Tile::kStep <= Tile::kThreads);
  const uint4* image_;
  const Windows& windows_;
  Cells& cells_;
  int first_step_, tap_, offset_;
};

// dy, [cell][channel]: the second operand of a weight gradient.
template <typename Tile>
class CellColumns {
 public:
  __device__ CellColumns(const uint4* dy, int cells, int chunks, int first_chunk, int first_step)
      : dy_(dy),
        cells_(cells),
        chunks_(chunks),
        first_cell_(first_step * Tile::kStep),
        chunk_(first_chunk + static_cast<int>(threadIdx.x) % kPitch) {}
  __device__ void load(uint4* tile, int step) const {
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const int row = i * (Tile::kThreads / kPitch) + thread / kPitch;
      const int cell = first_cell_ + step * Tile::kStep + row;
      const bool inside = cell < cells_ && chunk_ < chunks_;
      ptx::cp_async16(tile + swizzled<kPitch>(row, thread % kPitch), dy_ + (inside ? cell * chunks_ + chunk_ : 0),
                      inside);
    }
  }

 private:
  static constexpr int kPitch = Tile::kCols / kChunk, kTurns = Tile::kChunksB / Tile::kThreads;
  static_assert(Tile::kThreads % kPitch == 0 && kTurns * Tile::kThreads == Tile::kChunksB);
  const uint4* dy_;
  int cells_, chunks_, first_cell_, chunk_;
};

// Tiled kernel of forward and data gradient on tensor cores, for every convolution that fits.

// Row pitch of results in shared memory, in words of two results. Four extra words spread eight rows over all banks.
template <typename Tile>
inline constexpr int kStagedPitch = Tile::kCols / 2 + 4;

// Rounds the sums to results in shared memory, then writes them to `out` in whole chunks.
template <typename Low, typename Tile>
__device__ __forceinline__ void store_results(unsigned* staged, const MmaSums<Tile>& sums, const float* bias,
                                              uint4* out, const MmaProduct& product, const Windows& windows,
                                              int first_row, int first_chunk) {
  constexpr int kPitch = kStagedPitch<Tile>, kRowChunks = Tile::kCols / kChunk;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const Ending ending{1, product.bias, product.relu, false, false};
#pragma unroll
  for (int j = 0; j < Tile::kAcross; ++j) {
    const int col = warp_col<Tile>() + j * 8 + lane % 4 * 2, channel = first_chunk * kChunk + col;
    float biases[2] = {0, 0};
    if (product.bias && channel < product.out_chunks * kChunk) biases[0] = bias[channel], biases[1] = bias[channel + 1];
#pragma unroll
    for (int i = 0; i < Tile::kDown; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        staged[(warp_row<Tile>() + i * 16 + half * 8 + lane / 4) * kPitch + col / 2] = rounded_pair<Low>(
            ended(sums[i][j][half * 2], biases, 0, ending), ended(sums[i][j][half * 2 + 1], biases, 1, ending));
  }
  __syncthreads();
#pragma unroll 1
  for (int at = thread; at < Tile::kRows * kRowChunks; at += Tile::kThreads) {
    const int row = at / kRowChunks, chunk = at % kRowChunks, m = first_row + row;
    if (m >= windows.cells || first_chunk + chunk >= product.out_chunks) continue;
    const int cell = product.dense ? m : windows.out_cell(m);
    out[static_cast<long long>(cell) * product.out_chunks + first_chunk + chunk] =
        *reinterpret_cast<const uint4*>(staged + row * kPitch + chunk * 4);
  }
}

// blockIdx: tile of cells, tile of channels of the result, part.
template <typename Low, typename Tile, bool data>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    conv_mma_kernel(const uint4* image, const uint4* weights, const float* bias, uint4* out, MmaProduct product) {
  DP_DYNAMIC_SHARED(uint4, ring);
  DP_SHARED(Tap, taps, [kTapPlaces]);
  const Windows& windows = product.parts[blockIdx.z];
  const int first_row = static_cast<int>(blockIdx.x) * Tile::kRows;
  const int first_chunk = static_cast<int>(blockIdx.y) * (Tile::kCols / kChunk);
  if (first_row >= windows.cells) return;  // a part smaller than the largest: nothing to do for the whole block
  if (threadIdx.x < kTapPlaces) taps[threadIdx.x] = windows.tap(static_cast<int>(threadIdx.x));
  __syncthreads();

  const int depth = windows.taps() * windows.chunks;
  const int steps = (depth * kChunk + Tile::kStep - 1) / Tile::kStep;
  const WindowRows<Tile> rows(image, windows, taps, first_row);
  MmaSums<Tile> sums = {};
  if constexpr (data) {
    const WeightColumns<Tile> cols(weights, product, windows, taps, first_chunk);
    multiply<Low, Tile, true, false>(
        ring, steps,
        [&](uint4* stage, int step) {
          rows.load(stage, step);
          cols.load(stage + Tile::kChunksA, step);
        },
        sums);
  } else {
    const DenseRows<Tile> cols(weights, product.out_chunks * kChunk, depth, first_chunk * kChunk);
    multiply<Low, Tile, true, true>(
        ring, steps,
        [&](uint4* stage, int step) {
          rows.load(stage, step);
          cols.load(stage + Tile::kChunksA, step);
        },
        sums);
  }
  store_results<Low, Tile>(reinterpret_cast<unsigned*>(ring), sums, bias, out, product, windows, first_row,
                           first_chunk);
}

// Grid of kernels with blockIdx: tile of cells, tile of channels of the result, part.
template <typename Tile>
dim3 grid_of(const MmaProduct& product) {
  int cells = 0;
  for (int part = 0; part < product.count; ++part) cells = std::max(cells, product.parts[part].cells);
  return dim3(blocks_for(cells, Tile::kRows), blocks_for(product.out_chunks, Tile::kCols / kChunk), product.count);
}

template <typename Low, typename Tile, bool data>
void enqueue_mma_tiles(cudaStream_t stream, const MmaProduct& product, const void* image, const void* weights,
                       const void* bias, void* out) {
  const dim3 grid = grid_of<Tile>(product);
  if (grid.x == 0) return;
  launch({data ? "conv_mma_data" : "conv_mma_forward", grid, dim3(Tile::kThreads), stream, Tile::kSharedBytes},
         conv_mma_kernel<Low, Tile, data>, static_cast<const uint4*>(image), static_cast<const uint4*>(weights),
         static_cast<const float*>(bias), static_cast<uint4*>(out), product);
}

}  // namespace dp::kernels::cuda
