// Copies of operands to a stage in shared memory. Each class determines which chunks a thread
// copies and from where. The chunks of a step are distributed cyclically over the threads.
#pragma once

#include "kernels/cuda/tensor_core/conv_mma_tile.h"

namespace dp::kernels::cuda {

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

}  // namespace dp::kernels::cuda
