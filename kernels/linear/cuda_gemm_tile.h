// The kernel of a matrix product. Only for the .cu files that instantiate it.
#pragma once

#include "device_code.h"
#include "kernels/device/cuda/block.h"
#include "kernels/device/cuda/pack.h"
#include "kernels/linear/cuda_gemm.h"
#include "ptx.h"

namespace dp::kernels::cuda {

// Turns sums into results: adds partial sums, bias and ReLU.

__device__ __forceinline__ float ended(float sum, const float* bias, int col, const Ending& ending) {
  const float value = ending.bias ? sum + bias[col] : sum;
  return ending.relu && value < 0 ? 0.f : value;  // lets NaN through
}

// Index of a partial sum within its split.
template <typename Points>
__device__ long long partial_place(const Points& points, int dense_row, int col) {
  return Points::kColsInner ? static_cast<long long>(dense_row) * points.cols() + col
                            : static_cast<long long>(col) * points.all_rows() + dense_row;
}

// Offset of a split's partial sums in the workspace, in floats. A split holds the sums of
// all results, then, with `columns`, the sums of all columns.
template <typename Points>
__device__ __forceinline__ long long split_place(const Points& points, int split, bool columns) {
  return static_cast<long long>(split) *
         (static_cast<long long>(points.all_rows()) * points.cols() + (columns ? points.cols() : 0));
}
template <typename Points>
__device__ __forceinline__ long long column_place(const Points& points, int split, int col) {
  return split_place(points, split, true) + static_cast<long long>(points.all_rows()) * points.cols() + col;
}

inline constexpr int kEndThreads = 256;

// Each result has `lanes` threads. Thread i adds the partial sums of splits i, i + lanes, i + 2 * lanes, ... in order.
// Thread 0 then adds the threads' sums in order.
template <typename Points, int lanes, typename Out>
__global__ void __launch_bounds__(kEndThreads)
    gemm_end_kernel(const float* partials, const float* bias, Out* out, Geometry geometry, Ending ending) {
  constexpr int kResults = kEndThreads / lanes;
  DP_SHARED(float, sums, [lanes][kResults]);
  const Points points(geometry, 0);
  const int result = static_cast<int>(threadIdx.x) % kResults, lane = static_cast<int>(threadIdx.x) / kResults;
  const int at = static_cast<int>(blockIdx.x) * kResults + result, all = points.all_rows() * points.cols();
  float sum = 0;
  if (at < all)
    for (int split = lane; split < ending.splits; split += lanes)
      sum += partials[static_cast<long long>(split) * all + at];
  sums[lane][result] = sum;
  __syncthreads();
  if (lane != 0 || at >= all) return;
  for (int other = 1; other < lanes; ++other) sum += sums[other][result];
  const int inner = Points::kColsInner ? points.cols() : points.all_rows();
  const int row = Points::kColsInner ? at / inner : at % inner, col = Points::kColsInner ? at % inner : at / inner;
  out[points.out_row(row) + points.out_col(col)] = from_float<Out>(ended(sum, bias, col, ending));
}

template <typename Points, typename Out>
void enqueue_end(cudaStream_t stream, const float* partials, const float* bias, Out* out, const Geometry& geometry,
                 const Ending& ending) {
  const Points points(geometry, 0);
  const long long results = static_cast<long long>(points.all_rows()) * points.cols();
  const bool few = ending.splits <= 8;
  const Launch where{"gemm_end", dim3(blocks_for(results, few ? kEndThreads : kEndThreads / 8)), dim3(kEndThreads),
                     stream};
  launch(where, few ? gemm_end_kernel<Points, 1, Out> : gemm_end_kernel<Points, 8, Out>, partials, bias, out, geometry,
         ending);
}

// One tile of a product, computed by one block. Asynchronous copies load kStep elements
// of k to shared memory while the previous ones are multiplied.

inline constexpr int kStep = 16;

template <int rows, int cols, int thread_rows, int thread_cols, int blocks>
struct TileSize {
  static constexpr int kRows = rows, kCols = cols, kThreadRows = thread_rows, kThreadCols = thread_cols;
  static constexpr int kDown = rows / thread_rows, kAcross = cols / thread_cols;  // threads
  static constexpr int kThreads = kDown * kAcross;
  static constexpr int kBlocks = blocks;  // per multiprocessor, at least
};
using WideTile = TileSize<128, 128, 8, 8, 2>;
using TallTile = TileSize<128, 64, 8, 8, 3>;
using SquareTile = TileSize<64, 64, 8, 4, 4>;
using NarrowTile = TileSize<128, 32, 8, 4, 4>;
using SmallTile = TileSize<32, 32, 4, 4, 8>;

// One operand of a tile in shared memory, in the element order of its tensor: float32, bfloat16 or float16.
// `lines`: rows of the tile for a, columns for b. A pitch of kStep + 4 spreads eight rows over all banks.
template <bool along, int lines, typename T>
struct Operand {
  static constexpr int kLines = lines;
  static constexpr int kOuter = along ? lines : kStep, kInner = along ? kStep : lines;
  static constexpr int kPitch = along ? kStep + 4 : lines;
  using Tile = T[kOuter][kPitch];

  // Copies one step. `quads`: each group of four neighbours is contiguous, aligned, and
  // either inside or outside the image as a whole.
  template <int threads>
  __device__ static void load(Tile& tile, const T* source, const int4 (&rows)[lines], const int4 (&ks)[kStep],
                              const Bounds& bounds, bool quads) {
    if (quads) {
      const int thread = static_cast<int>(threadIdx.x), inner = thread % (kInner / 4) * 4;  // the same for all i
      const Point fixed = unpacked(along ? ks[inner] : rows[inner]);
#pragma unroll
      for (int i = 0; i < lines * kStep / 4 / threads; ++i) {
        const int outer = (i * threads + thread) / (kInner / 4);
        const Point other = unpacked(along ? rows[outer] : ks[outer]);
        const bool inside = bounds.hold(fixed, other);
        const T* const from = source + (inside ? fixed.offset + other.offset : 0);
        if constexpr (sizeof(T) == 4)
          ptx::cp_async16(&tile[outer][inner], from, inside);
        else
          ptx::cp_async8(&tile[outer][inner], from, inside);
      }
    } else {
#pragma unroll 1
      for (int at = static_cast<int>(threadIdx.x); at < lines * kStep; at += threads) {
        const int outer = at / kInner, inner = at % kInner;
        const Point row = unpacked(rows[along ? outer : inner]), k = unpacked(ks[along ? inner : outer]);
        const bool inside = bounds.hold(row, k);
        if constexpr (sizeof(T) == 4)
          ptx::cp_async4(&tile[outer][inner], source + (inside ? row.offset + k.offset : 0), inside);
        else  // cp.async has no 2-byte copies; the barrier after cp_async_wait() covers these stores too
          tile[outer][inner] = inside ? source[row.offset + k.offset] : T{};
      }
    }
  }

  // Row in the tile of the i-th row of thread t; `threads` threads share the rows.
  template <int threads>
  __device__ static int row_of(int t, int i) {
    return along ? i * threads + t : i / 4 * 4 * threads + t * 4 + i % 4;
  }

  // Loads `count` rows of thread t, starting at its row `first`, for four values of k starting at `k`.
  template <int threads, int count>
  __device__ static void take(const Tile& tile, int t, int first, int k, float (&values)[4][count]) {
    if constexpr (along) {
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const Pack<4> quad = load_pack<4>(&tile[(first + i) * threads + t][k]);
#pragma unroll
        for (int q = 0; q < 4; ++q) values[q][i] = quad.v[q];
      }
    } else {
#pragma unroll
      for (int q = 0; q < 4; ++q)
#pragma unroll
        for (int i = 0; i < count; i += 4) {
          const Pack<4> quad = load_pack<4>(&tile[k + q][(first + i) * threads + t * 4]);
#pragma unroll
          for (int j = 0; j < 4; ++j) values[q][i + j] = quad.v[j];
        }
    }
  }
};

// Type of the results; T is the operands' type.
template <typename Points, typename T>
using ResultOf = std::conditional_t<Points::kOfWeights, float, T>;

// Resident blocks per multiprocessor, at least. Conversion from 16 bits takes registers:
// at two blocks the kernel would spill.
template <typename Tile, typename T>
inline constexpr int kResidentBlocks = sizeof(T) == 2 && Tile::kBlocks == 2 ? 1 : Tile::kBlocks;

// Computes one tile. blockIdx: tile of rows, tile of cols, part * splits + split. Calls finish(points, sums,
// row_of, col_of, split, column) with the thread's sums; row_of(i) and col_of(j) give their rows and columns,
// which may be past the last. finish is not called for a tile without rows. column: with `column_sums`
// (requires !kAlongB), in the first tile of rows, thread i holds the sum of column i of b over the split.
template <typename Points, typename Tile, bool column_sums, typename T, typename Finish>
__device__ __forceinline__ void multiply_tile(const T* a, const T* b, const Geometry& geometry, const Ending& ending,
                                              const Finish& finish) {
  using A = Operand<Points::kAlongA, Tile::kRows, T>;
  using B = Operand<Points::kAlongB, Tile::kCols, T>;
  constexpr int kThreads = Tile::kThreads, kM = Tile::kThreadRows, kN = Tile::kThreadCols;
  static_assert(!column_sums || (!Points::kAlongB && Tile::kCols <= kThreads));
  DP_SHARED(T, a_tiles, [2][A::kOuter][A::kPitch]);
  DP_SHARED(T, b_tiles, [2][B::kOuter][B::kPitch]);
  DP_SHARED(int4, a_rows, [A::kLines]);
  DP_SHARED(int4, b_rows, [B::kLines]);
  DP_SHARED(int4, a_ks, [2][kStep]);
  DP_SHARED(int4, b_ks, [2][kStep]);

  const int split = static_cast<int>(blockIdx.z) % ending.splits;
  const Points points(geometry, static_cast<int>(blockIdx.z) / ending.splits);
  const int first_row = static_cast<int>(blockIdx.x) * Tile::kRows,
            first_col = static_cast<int>(blockIdx.y) * Tile::kCols;
  if (first_row >= points.rows()) return;  // a part smaller than the largest: nothing to do for the whole block
  const int all_steps = (points.depth() + kStep - 1) / kStep;
  const int each = (all_steps + ending.splits - 1) / ending.splits;
  const int begin = split * each, steps = min(each, all_steps - begin);

  const int thread = static_cast<int>(threadIdx.x);
  const int4 nowhere = packed({0, kOutside, 0});
  for (int i = thread; i < A::kLines; i += kThreads)
    a_rows[i] = first_row + i < points.rows() ? packed(points.a_row(first_row + i)) : nowhere;
  for (int i = thread; i < B::kLines; i += kThreads)
    b_rows[i] = first_col + i < points.cols() ? packed(points.b_row(first_col + i)) : nowhere;
  const auto find_ks = [&](int step) {  // one warp per operand
    const int i = thread % 32, k = (begin + step) * kStep + i;
    if (i >= kStep) return;
    if (thread < 32) a_ks[step % 2][i] = k < points.depth() ? packed(points.a_k(k)) : nowhere;
    if (thread >= kThreads - 32) b_ks[step % 2][i] = k < points.depth() ? packed(points.b_k(k)) : nowhere;
  };
  const auto load = [&](int step) {
    A::template load<kThreads>(a_tiles[step % 2], a, a_rows, a_ks[step % 2], points.bounds_a(), ending.quads_a);
    B::template load<kThreads>(b_tiles[step % 2], b, b_rows, b_ks[step % 2], points.bounds_b(), ending.quads_b);
    ptx::cp_async_commit();
  };

  // A warp is 4 threads down and 8 across.
  constexpr int kWarpsAcross = Tile::kAcross / 8;
  const int warp = thread / 32, lane = thread % 32;
  const int down = warp / kWarpsAcross * 4 + lane / 8, across = warp % kWarpsAcross * 8 + lane % 8;

  float sums[kM][kN] = {};
  [[maybe_unused]] float column = 0;
  if (steps > 0) {
    find_ks(0);
    find_ks(1);
    __syncthreads();
    load(0);
  }
  for (int step = 0; step < steps; ++step) {
    ptx::cp_async_wait<0>();
    __syncthreads();
    if (step + 1 < steps) load(step + 1);
    find_ks(step + 2);  // reuses the slot of the current step
    if constexpr (column_sums)
      if (first_row == 0 && thread < Tile::kCols)
        for (int k = 0; k < kStep; ++k) column += to_float(b_tiles[step % 2][k][thread]);
#pragma unroll 1  // unrolled code needs more registers than there are
    for (int k = 0; k < kStep; k += 4) {
      float as[4][kM], bs[4][4];  // four columns of b at a time, to save registers
      A::template take<Tile::kDown>(a_tiles[step % 2], down, 0, k, as);
#pragma unroll
      for (int first = 0; first < kN; first += 4) {
        B::template take<Tile::kAcross>(b_tiles[step % 2], across, first, k, bs);
#pragma unroll
        for (int q = 0; q < 4; ++q)
#pragma unroll
          for (int i = 0; i < kM; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) sums[i][first + j] = fmaf(as[q][i], bs[q][j], sums[i][first + j]);
      }
    }
  }

  // Computed again to keep registers free in the loop above.
  finish(
      Points(geometry, static_cast<int>(blockIdx.z) / ending.splits), sums,
      [&](int i) { return static_cast<int>(blockIdx.x) * Tile::kRows + A::template row_of<Tile::kDown>(down, i); },
      [&](int j) { return static_cast<int>(blockIdx.y) * Tile::kCols + B::template row_of<Tile::kAcross>(across, j); },
      static_cast<int>(blockIdx.z) % ending.splits, column);
}

// columns: the sums of b over k, for products with column sums; null without ending.bias.
// With splits only: partials holds the partial sums of all splits, as float; counters holds end_groups(splits) + 1
// zeros per tile and part. The last block of a group of kEndGroup splits adds the group's partial sums. The last block
// of all groups adds the groups. Both add in a fixed order.
template <typename Points, typename Tile, typename T, typename Beside>
__global__ void __launch_bounds__(Tile::kThreads, (kResidentBlocks<Tile, T>))
    gemm_kernel(const T* a, const T* b, const float* bias, void* out, float* columns, float* partials,
                unsigned* counters, Geometry geometry, Ending ending, Beside beside) {
  using Out = ResultOf<Points, T>;
  constexpr bool kColumns = Points::kOfWeights;
  multiply_tile<Points, Tile, kColumns>(
      a, b, geometry, ending,
      [&](const auto& points, const auto& sums, const auto& row_of, const auto& col_of, int split, float column) {
        const int own_col = static_cast<int>(blockIdx.y * Tile::kCols + threadIdx.x);
        const bool has_column =
            kColumns && ending.bias && blockIdx.x == 0 && threadIdx.x < Tile::kCols && own_col < points.cols();
        const auto each = [&](const auto& take) {
#pragma unroll
          for (int i = 0; i < Tile::kThreadRows; ++i) {
            const int row = row_of(i);
            if (row >= points.rows()) continue;
            const int dense = points.dense_row(row);
#pragma unroll
            for (int j = 0; j < Tile::kThreadCols; ++j)
              if (const int col = col_of(j); col < points.cols()) take(sums[i][j], dense, col);
          }
        };
        const auto end = [&](float sum, int dense, int col) {
          const long long place = points.out_row(dense) + points.out_col(col);
          const float value = kColumns ? sum : ended(sum, bias, col, ending);
          static_cast<Out*>(out)[place] = from_float<Out>(beside(value, dense, col, place));
        };
        if (ending.splits == 1) {
          each(end);
          if (has_column) columns[own_col] = column;
          return;
        }
        const bool with_columns = kColumns && ending.bias;
        const auto of_split = [&](int which) { return partials + split_place(points, which, with_columns); };
        each([&](float sum, int dense, int col) { of_split(split)[partial_place(points, dense, col)] = sum; });
        if (has_column) partials[column_place(points, split, own_col)] = column;
        // Adds `count` partial sums, of splits first, first + step, ..., and writes the sum to the place of
        // `first`, or with `ends` to the results. Not unrolled: unrolled code would be most of the kernel.
        const auto add = [&](int first, int count, int step, bool ends) {
#pragma unroll 1
          for (int i = 0; i < Tile::kThreadRows; ++i) {
            const int row = row_of(i);
            if (row >= points.rows()) continue;
            const int dense = points.dense_row(row);
#pragma unroll 1
            for (int j = 0; j < Tile::kThreadCols; ++j) {
              const int col = col_of(j);
              if (col >= points.cols()) continue;
              const long long at = partial_place(points, dense, col);
              float sum = 0;
#pragma unroll 1
              for (int k = 0; k < count; ++k) sum += of_split(first + k * step)[at];
              if (ends)
                end(sum, dense, col);
              else
                of_split(first)[at] = sum;
            }
          }
          if (!has_column) return;
          float sum = 0;
#pragma unroll 1
          for (int k = 0; k < count; ++k) sum += partials[column_place(points, first + k * step, own_col)];
          (ends ? columns[own_col] : partials[column_place(points, first, own_col)]) = sum;
        };
        const int group = split / kEndGroup, groups = (ending.splits - 1) / kEndGroup + 1;
        const int first = group * kEndGroup, members = min(kEndGroup, ending.splits - first);
        const unsigned tile = (blockIdx.z / ending.splits * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
        unsigned* const counter = counters + tile * (groups + 1);
#pragma unroll 1
        for (int level = 0; level < 2; ++level) {
          const bool of_groups = level == 1;
          if (!is_last_block(counter + (of_groups ? groups : group), of_groups ? groups : members)) return;
          const bool ends = of_groups || groups == 1;
          add(of_groups ? 0 : first, of_groups ? groups : members, of_groups ? kEndGroup : 1, ends);
          if (ends) return;
        }
      });
}

// Definition of Gemm::enqueue. Include it only in the .cu file that instantiates Gemm for a product.

template <typename Points, typename Beside>
template <typename Tile, typename T>
void Gemm<Points, Beside>::enqueue_tiles(cudaStream_t stream, const char* kernel, const T* a, const T* b,
                                         const float* bias, void* out, float* columns, float* workspace,
                                         const Beside& beside) const {
  Ending ending = ending_;
  ending.quads_a = ending.quads_a && on_16_bytes(a), ending.quads_b = ending.quads_b && on_16_bytes(b);
  const dim3 grid(blocks_for(shape_.rows, Tile::kRows), blocks_for(shape_.cols, Tile::kCols),
                  static_cast<unsigned>(shape_.parts * ending.splits));
  launch({kernel, grid, dim3(Tile::kThreads), stream}, gemm_kernel<Points, Tile, T, Beside>, a, b, bias, out, columns,
         ending.splits == 1 ? nullptr : workspace, static_cast<unsigned*>(counters_.get()), geometry_, ending, beside);
}

template <typename Points, typename Beside>
template <typename T>
void Gemm<Points, Beside>::enqueue_in(cudaStream_t stream, const char* kernel, const T* a, const T* b,
                                      const float* bias, void* out, float* columns, float* workspace,
                                      const Beside& beside) const {
  switch (choice_.tile) {
    case TileKind::wide: return enqueue_tiles<WideTile>(stream, kernel, a, b, bias, out, columns, workspace, beside);
    case TileKind::tall: return enqueue_tiles<TallTile>(stream, kernel, a, b, bias, out, columns, workspace, beside);
    case TileKind::square:
      return enqueue_tiles<SquareTile>(stream, kernel, a, b, bias, out, columns, workspace, beside);
    case TileKind::narrow:
      return enqueue_tiles<NarrowTile>(stream, kernel, a, b, bias, out, columns, workspace, beside);
    case TileKind::small: return enqueue_tiles<SmallTile>(stream, kernel, a, b, bias, out, columns, workspace, beside);
  }
}

template <typename Points, typename Beside>
void Gemm<Points, Beside>::enqueue(cudaStream_t stream, const char* kernel, const void* a, const void* b,
                                   const float* bias, void* out, float* columns, float* workspace,
                                   const Beside& beside) const {
  if (shape_.results == 0) return;
  const auto enqueue = [&]<typename T>() {
    enqueue_in(stream, kernel, static_cast<const T*>(a), static_cast<const T*>(b), bias, out, columns, workspace,
               beside);
  };
  if constexpr (std::is_same_v<Beside, Nothing>)
    in_type(type_, enqueue);
  else
    enqueue.template operator()<float>();
}

}  // namespace dp::kernels::cuda
