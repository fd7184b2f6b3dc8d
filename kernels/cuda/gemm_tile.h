// One tile of a product for one block of threads: 16 steps of the sum at a time come to shared memory by asynchronous copies
// while the step before is multiplied.
#pragma once

#include "device_code.h"
#include "kernels/cuda/gemm_end.h"
#include "kernels/cuda/gemm_geometry.h"
#include "ptx.h"

namespace dp::kernels::cuda {

inline constexpr int kStep = 16;

template <int rows, int cols, int thread_rows, int thread_cols, int blocks>
struct TileSize {
  static constexpr int kRows = rows, kCols = cols, kThreadRows = thread_rows, kThreadCols = thread_cols;
  static constexpr int kDown = rows / thread_rows, kAcross = cols / thread_cols;  // threads
  static constexpr int kThreads = kDown * kAcross;
  static constexpr int kBlocks = blocks;  // of a multiprocessor, at least
};
using WideTile = TileSize<128, 128, 8, 8, 2>;
using TallTile = TileSize<128, 64, 8, 8, 3>;
using SquareTile = TileSize<64, 64, 8, 4, 4>;
using NarrowTile = TileSize<128, 32, 8, 4, 4>;
using SmallTile = TileSize<32, 32, 4, 4, 8>;

// One operand in shared memory, of `lines` rows of the tile: neighbours are those that are neighbours in the tensor. A pitch of
// kStep + 4 spreads eight rows over all banks.
template <bool along, int lines>
struct Operand {
  static constexpr int kLines = lines;
  static constexpr int kOuter = along ? lines : kStep, kInner = along ? kStep : lines;
  static constexpr int kPitch = along ? kStep + 4 : lines;
  using Tile = float[kOuter][kPitch];

  // Copies one step. `quads`: every four neighbours lie on 16 bytes and are in the image or outside together.
  template <int threads>
  __device__ static void load(Tile& tile, const float* source, const Point (&rows)[lines], const Point (&ks)[kStep],
                              const Bounds& bounds, bool quads) {
    if (quads) {
#pragma unroll
      for (int i = 0; i < lines * kStep / 4 / threads; ++i) {
        const int at = i * threads + static_cast<int>(threadIdx.x);
        const int outer = at / (kInner / 4), inner = at % (kInner / 4) * 4;
        const Point &row = rows[along ? outer : inner], &k = ks[along ? inner : outer];
        const bool inside = bounds.hold(row, k);
        ptx::cp_async16(&tile[outer][inner], source + (inside ? row.offset + k.offset : 0), inside);
      }
    } else {
#pragma unroll 1
      for (int at = static_cast<int>(threadIdx.x); at < lines * kStep; at += threads) {
        const int outer = at / kInner, inner = at % kInner;
        const Point &row = rows[along ? outer : inner], &k = ks[along ? inner : outer];
        const bool inside = bounds.hold(row, k);
        ptx::cp_async4(&tile[outer][inner], source + (inside ? row.offset + k.offset : 0), inside);
      }
    }
  }

  // Row of the tile of a thread's i-th; `threads` share the rows, this is thread `t` of them.
  template <int threads>
  __device__ static int row_of(int t, int i) {
    return along ? i * threads + t : i / 4 * 4 * threads + t * 4 + i % 4;
  }

  // `count` of a thread's rows, from its `first` on, at four k's from `k`.
  template <int threads, int count>
  __device__ static void take(const Tile& tile, int t, int first, int k, float (&values)[4][count]) {
    if constexpr (along) {
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const float4 quad = *reinterpret_cast<const float4*>(&tile[(first + i) * threads + t][k]);
        values[0][i] = quad.x, values[1][i] = quad.y, values[2][i] = quad.z, values[3][i] = quad.w;
      }
    } else {
#pragma unroll
      for (int q = 0; q < 4; ++q)
#pragma unroll
        for (int i = 0; i < count; i += 4) {
          const float4 quad = *reinterpret_cast<const float4*>(&tile[k + q][(first + i) * threads + t * 4]);
          values[q][i] = quad.x, values[q][i + 1] = quad.y, values[q][i + 2] = quad.z, values[q][i + 3] = quad.w;
        }
    }
  }
};

// out: the result, or with splits `splits` times all sums. blockIdx: tile of rows, tile of cols, part * splits + split.
template <typename Points, typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    gemm_kernel(const float* a, const float* b, const float* bias, float* out, Geometry geometry, Ending ending) {
  using A = Operand<Points::kAlongA, Tile::kRows>;
  using B = Operand<Points::kAlongB, Tile::kCols>;
  constexpr int kThreads = Tile::kThreads, kM = Tile::kThreadRows, kN = Tile::kThreadCols;
  DP_SHARED(float, a_tiles, [2][A::kOuter][A::kPitch]);
  DP_SHARED(float, b_tiles, [2][B::kOuter][B::kPitch]);
  DP_SHARED(Point, a_rows, [A::kLines]);
  DP_SHARED(Point, b_rows, [B::kLines]);
  DP_SHARED(Point, a_ks, [2][kStep]);
  DP_SHARED(Point, b_ks, [2][kStep]);

  const int split = static_cast<int>(blockIdx.z) % ending.splits;
  const Points points(geometry, static_cast<int>(blockIdx.z) / ending.splits);
  const int first_row = static_cast<int>(blockIdx.x) * Tile::kRows,
            first_col = static_cast<int>(blockIdx.y) * Tile::kCols;
  if (first_row >= points.rows()) return;  // the whole block: a part smaller than the largest
  const int all_steps = (points.depth() + kStep - 1) / kStep;
  const int each = (all_steps + ending.splits - 1) / ending.splits;
  const int begin = split * each, steps = min(each, all_steps - begin);

  const int thread = static_cast<int>(threadIdx.x);
  const Point nowhere{0, kOutside, 0};
  for (int i = thread; i < A::kLines; i += kThreads)
    a_rows[i] = first_row + i < points.rows() ? points.a_row(first_row + i) : nowhere;
  for (int i = thread; i < B::kLines; i += kThreads)
    b_rows[i] = first_col + i < points.cols() ? points.b_row(first_col + i) : nowhere;
  const auto find_ks = [&](int step) {  // one warp for each operand
    const int i = thread % 32, k = (begin + step) * kStep + i;
    if (i >= kStep) return;
    if (thread < 32) a_ks[step % 2][i] = k < points.depth() ? points.a_k(k) : nowhere;
    if (thread >= kThreads - 32) b_ks[step % 2][i] = k < points.depth() ? points.b_k(k) : nowhere;
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
    find_ks(step + 2);  // where those of this step were
#pragma unroll 1        // more would take more registers than there are
    for (int k = 0; k < kStep; k += 4) {
      float as[4][kM], bs[4][4];  // not all of b's: registers
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

#pragma unroll
  for (int i = 0; i < kM; ++i) {
    const int row = first_row + A::template row_of<Tile::kDown>(down, i);
    if (row >= points.rows()) continue;
    const int dense = points.dense_row(row);
    const long long base = points.out_row(dense);
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      const int col = first_col + B::template row_of<Tile::kAcross>(across, j);
      if (col >= points.cols()) continue;
      if (ending.splits == 1) {
        out[base + points.out_col(col)] = ended(sums[i][j], bias, col, ending);
      } else {
        out[static_cast<long long>(split) * points.all_rows() * points.cols() + partial_place(points, dense, col)] =
            sums[i][j];
      }
    }
  }
}

}  // namespace dp::kernels::cuda
