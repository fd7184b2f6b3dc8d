#include "kernels/conv/cuda_thin.h"

#include <algorithm>

#include "kernels/device/cuda/block.h"
#include "kernels/linear/cuda_gemm.h"
#include "kernels/linear/cuda_gemm_tile.h"

namespace dp::kernels::cuda {
namespace {

constexpr int kMostDepth = 160;  // channels of x times kernel height and width

// Elements that a thread stores with one instruction.
template <typename T, int count>
struct alignas(count * sizeof(T)) Chunk {
  T v[count];
};

constexpr int kForwardThreads = 128, kCells = 2, kOutputs = 32;  // per thread: cells of y, channels of y

// blockIdx: tile of cells of y, tile of channels of y. `kChunk`: neighbouring channels per store: 16 bytes, or one.
template <typename T, int kChunk>
__global__ void __launch_bounds__(kForwardThreads)
    thin_forward_kernel(const T* x, const T* w, const float* bias, T* y, Geometry geometry, Ending ending) {
  DP_SHARED(float, weights, [kMostDepth][kOutputs]);
  DP_SHARED(Point, ks, [kMostDepth]);
  const ForwardPoints points(geometry, 0);
  const int depth = points.depth(), first_col = static_cast<int>(blockIdx.y) * kOutputs;
  const int thread = static_cast<int>(threadIdx.x);
  for (int k = thread; k < depth; k += kForwardThreads) ks[k] = points.a_k(k);
  for (int at = thread; at < depth * kOutputs; at += kForwardThreads) {
    const int k = at / kOutputs, col = first_col + at % kOutputs;
    weights[k][at % kOutputs] =
        col < points.cols() ? to_float(w[points.b_row(col).offset + points.b_k(k).offset]) : 0.f;
  }
  __syncthreads();

  int rows[kCells];
  Point cells[kCells];
#pragma unroll
  for (int i = 0; i < kCells; ++i) {
    rows[i] = (static_cast<int>(blockIdx.x) * kCells + i) * kForwardThreads + thread;
    cells[i] = rows[i] < points.rows() ? points.a_row(rows[i]) : Point{0, kOutside, 0};
  }
  float sums[kCells][kOutputs] = {};
#pragma unroll 1
  for (int k = 0; k < depth; ++k) {
    float values[kCells];
#pragma unroll
    for (int i = 0; i < kCells; ++i)
      values[i] = points.bounds_a().hold(cells[i], ks[k]) ? to_float(x[cells[i].offset + ks[k].offset]) : 0.f;
#pragma unroll
    for (int j = 0; j < kOutputs; j += 4) {
      const float4 quad = *reinterpret_cast<const float4*>(&weights[k][j]);
#pragma unroll
      for (int i = 0; i < kCells; ++i) {
        sums[i][j] = fmaf(values[i], quad.x, sums[i][j]);
        sums[i][j + 1] = fmaf(values[i], quad.y, sums[i][j + 1]);
        sums[i][j + 2] = fmaf(values[i], quad.z, sums[i][j + 2]);
        sums[i][j + 3] = fmaf(values[i], quad.w, sums[i][j + 3]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kCells; ++i) {
    if (rows[i] >= points.rows()) continue;
    T* const cell = y + points.out_row(rows[i]);
#pragma unroll
    for (int j = 0; j < kOutputs; j += kChunk) {
      const int col = first_col + j;
      if (col >= points.cols()) continue;
      Chunk<T, kChunk> chunk;
#pragma unroll
      for (int k = 0; k < kChunk; ++k) chunk.v[k] = from_float<T>(ended(sums[i][j + k], bias, col + k, ending));
      *reinterpret_cast<Chunk<T, kChunk>*>(cell + points.out_col(col)) = chunk;
    }
  }
}

constexpr int kAcross = 16, kLanes = 16, kWeightsThreads = kAcross * kLanes;  // threads over channels of y, over cells
constexpr int kColumns = 32;                                                  // channels of y per block, two per thread
constexpr int kBatch = 64;                                                    // cells in shared memory at a time
constexpr int kLeastCells = 512;                                              // per chunk
constexpr int kBlocks = 1024;
constexpr int kEndChunks = 32;  // chunks that one block adds at the end

// blockIdx: chunk of cells, tile of channels of y, tile of `taps` rows of the product. A row is (kernel
// row, kernel col, channel). Partial sums are stored as in gemm_kernel; with `bias`, the sums of dy follow.
// The last block of a group of kEndChunks chunks adds the group's partial sums. The last block of all
// groups adds the groups. Both add in a fixed order. counters: one per group and one for all groups, all 0.
template <int taps, typename T>
__global__ void __launch_bounds__(kWeightsThreads)
    thin_weights_kernel(const T* x, const T* dy, float* partials, float* dw, float* db, unsigned* counters,
                        Geometry geometry, int chunk, bool bias) {
  DP_SHARED(float, patches, [kBatch][taps]);
  DP_SHARED(Point, tap_points, [taps]);
  DP_SHARED(Point, cell_points, [kBatch]);
  DP_SHARED(long long, dy_cells, [kBatch]);
  DP_SHARED(float, lanes, [kLanes][kColumns]);
  const WeightsPoints points(geometry, 0);
  const int thread = static_cast<int>(threadIdx.x), across = thread % kAcross, lane = thread / kAcross;
  const int first_col = static_cast<int>(blockIdx.y) * kColumns, first_row = static_cast<int>(blockIdx.z) * taps;
  const int begin = static_cast<int>(blockIdx.x) * chunk, end = min(points.depth(), begin + chunk);
  const Point nowhere{0, kOutside, 0};
  if (thread < taps)
    tap_points[thread] = first_row + thread < points.rows() ? points.a_row(first_row + thread) : nowhere;

  float sums[2][taps] = {}, columns[2] = {};
  for (int first = begin; first < end; first += kBatch) {
    __syncthreads();
    if (thread < kBatch) {
      const bool inside = first + thread < end;
      cell_points[thread] = inside ? points.a_k(first + thread) : nowhere;
      dy_cells[thread] = inside ? points.b_k(first + thread).offset : 0;
    }
    __syncthreads();
    for (int at = thread; at < kBatch * taps; at += kWeightsThreads) {
      const Point &tap = tap_points[at % taps], &cell = cell_points[at / taps];
      patches[at / taps][at % taps] = points.bounds_a().hold(tap, cell) ? to_float(x[tap.offset + cell.offset]) : 0.f;
    }
    __syncthreads();
#pragma unroll 1
    for (int cell = lane; cell < kBatch; cell += kLanes) {
      float grads[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int col = first_col + j * kAcross + across;
        const bool inside = first + cell < end && col < points.cols();
        grads[j] = inside ? to_float(dy[dy_cells[cell] + points.b_row(col).offset]) : 0.f;
        columns[j] += grads[j];
      }
#pragma unroll
      for (int tap = 0; tap < taps; tap += 4) {
        const float4 quad = *reinterpret_cast<const float4*>(&patches[cell][tap]);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          sums[j][tap] = fmaf(grads[j], quad.x, sums[j][tap]);
          sums[j][tap + 1] = fmaf(grads[j], quad.y, sums[j][tap + 1]);
          sums[j][tap + 2] = fmaf(grads[j], quad.z, sums[j][tap + 2]);
          sums[j][tap + 3] = fmaf(grads[j], quad.w, sums[j][tap + 3]);
        }
      }
    }
  }

  // In thread i < kColumns: the sum of column i over all lanes.
  const auto add_lanes = [&](float first, float second) {
    __syncthreads();
    lanes[lane][across] = first;
    lanes[lane][kAcross + across] = second;
    __syncthreads();
    float sum = 0;
    if (thread < kColumns)
      for (int other = 0; other < kLanes; ++other) sum += lanes[other][thread];
    return sum;
  };
  const int col = first_col + thread;
  const bool writes = thread < kColumns && col < points.cols();
  float* const own = partials + split_place(points, static_cast<int>(blockIdx.x), bias);
#pragma unroll
  for (int tap = 0; tap < taps; ++tap) {
    const float sum = add_lanes(sums[0][tap], sums[1][tap]);
    if (writes && first_row + tap < points.rows()) own[partial_place(points, first_row + tap, col)] = sum;
  }
  if (bias && blockIdx.z == 0) {
    const float sum = add_lanes(columns[0], columns[1]);
    if (writes) partials[column_place(points, static_cast<int>(blockIdx.x), col)] = sum;
  }

  const int results = points.rows() * points.cols(), all = results + (bias ? points.cols() : 0);
  const auto add = [&](int first, int count, int step, bool ends) {
    for (int at = thread; at < all; at += kWeightsThreads) {
      float sum = 0;
      for (int k = 0; k < count; ++k) sum += partials[split_place(points, first + k * step, bias) + at];
      if (!ends)
        partials[split_place(points, first, bias) + at] = sum;
      else if (at >= results)
        db[at - results] = sum;
      else
        dw[points.out_row(at % points.rows()) + points.out_col(at / points.rows())] = sum;
    }
  };
  const int chunks = static_cast<int>(gridDim.x), groups = (chunks - 1) / kEndChunks + 1;
  const int group = static_cast<int>(blockIdx.x) / kEndChunks, first = group * kEndChunks;
  const int members = min(kEndChunks, chunks - first);
  if (!is_last_block(counters + group, static_cast<unsigned>(members) * gridDim.y * gridDim.z)) return;
  add(first, members, 1, groups == 1);
  if (groups == 1 || !is_last_block(counters + groups, static_cast<unsigned>(groups))) return;
  add(0, groups, kEndChunks, true);
}

// Rows of the product per block.
int taps_of(const WeightsPoints& points) { return points.rows() <= 12 ? 12 : points.rows() <= 28 ? 28 : 32; }

int over(int count, int each) { return (count + each - 1) / each; }

}  // namespace

bool is_thin(const Geometry& g) { return g.channels <= kThinChannels && ForwardPoints(g, 0).depth() <= kMostDepth; }

void ThinForward::enqueue(cudaStream_t stream, const void* x, const void* w, const float* bias, void* y) const {
  const ForwardPoints points(geometry_, 0);
  if (points.rows() == 0) return;
  const dim3 grid(blocks_for(points.rows(), kForwardThreads * kCells), blocks_for(points.cols(), kOutputs));
  in_type(type_, [&]<typename T>() {
    constexpr int kWhole = 16 / sizeof(T);
    const bool whole = in_chunks(geometry_.y, points.cols(), kWhole) && on_16_bytes(y);
    launch({"conv2d_forward", grid, dim3(kForwardThreads), stream},
           whole ? thin_forward_kernel<T, kWhole> : thin_forward_kernel<T, 1>, static_cast<const T*>(x),
           static_cast<const T*>(w), bias, static_cast<T*>(y), geometry_, ending_);
  });
}

ThinWeights::ThinWeights(DType type, const Geometry& geometry, bool bias)
    : type_(type), geometry_(geometry), bias_(bias) {
  const WeightsPoints points(geometry_, 0);
  const int tiles = over(points.cols(), kColumns) * over(points.rows(), taps_of(points));
  chunks_ = std::max(1, std::min(kBlocks / tiles, points.depth() / kLeastCells));
  counters_ = zeroed_counters(static_cast<unsigned>(over(chunks_, kEndChunks) + 1));
}

std::size_t ThinWeights::workspace_bytes() const {
  const WeightsPoints points(geometry_, 0);
  return static_cast<std::size_t>(chunks_) * (points.rows() + bias_) * points.cols() * sizeof(float);
}

void ThinWeights::enqueue(cudaStream_t stream, const void* x, const void* dy, float* dw, float* db,
                          float* workspace) const {
  const WeightsPoints points(geometry_, 0);
  const int taps = taps_of(points), chunk = over(points.depth(), chunks_);
  const dim3 grid(static_cast<unsigned>(chunks_), blocks_for(points.cols(), kColumns), blocks_for(points.rows(), taps));
  const Launch where{"conv2d_backward_weights", grid, dim3(kWeightsThreads), stream};
  in_type(type_, [&]<typename T>() {
    const auto kernel = taps == 12   ? thin_weights_kernel<12, T>
                        : taps == 28 ? thin_weights_kernel<28, T>
                                     : thin_weights_kernel<32, T>;
    launch(where, kernel, static_cast<const T*>(x), static_cast<const T*>(dy), workspace, dw, db,
           static_cast<unsigned*>(counters_.get()), geometry_, chunk, bias_);
  });
}

}  // namespace dp::kernels::cuda
