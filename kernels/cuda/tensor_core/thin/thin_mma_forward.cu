// Conv2dForward, and NormConv2dForward without normalisation of x, of an image with few channels on tensor cores.
#include <optional>

#include "kernels/cuda/gemm/conv_geometry.h"
#include "kernels/cuda/runtime/owner.h"
#include "kernels/cuda/tensor_core/conv_mma_norm.h"
#include "kernels/cuda/tensor_core/conv_mma_op.h"
#include "kernels/cuda/tensor_core/thin/thin_mma.h"
#include "kernels/cuda/tensor_core/thin/thin_patches.h"
#include "kernels/op_args.h"

namespace dp::kernels::cuda {
namespace {

// 256 cells and 64 channels of y; a warp computes 16 cells at a time.
using ThinTile = MmaTileSize<256, 64, 32, 64, 16, 1, 3>;

struct ThinProduct {
  ThinPatches patches;
  int out_chunks;
  int steps;  // of 16 elements of a patch
  int bias, relu;

  // Chunks of shared memory. Weights have an odd number of chunks per channel of y, which avoids bank conflicts.
  __host__ __device__ int weight_pitch() const { return 2 * steps + 1; }
  __host__ __device__ int weight_chunks() const { return ThinTile::kCols * weight_pitch(); }
  std::size_t shared_bytes() const {
    return (kStagedChunks + static_cast<std::size_t>(weight_chunks())) * sizeof(uint4) +
           static_cast<std::size_t>(steps) * 16 * sizeof(int) +
           static_cast<std::size_t>(patches.most_elements(ThinTile::kRows)) * sizeof(std::uint16_t);
  }
  static constexpr std::size_t kStagedChunks = ThinTile::kRows * kStagedPitch<ThinTile> / 4;
};
static_assert(std::has_unique_object_representations_v<ThinProduct>);

// blockIdx: tile of cells of y, tile of channels of y. Null parts of `moments`: no moments.
template <typename Low>
__global__ void __launch_bounds__(ThinTile::kThreads, ThinTile::kBlocks)
    thin_mma_forward_kernel(const std::uint16_t* x, const std::uint16_t* w, const float* bias, uint4* y,
                            StoredMoments moments, ThinProduct product) {
  using Tile = ThinTile;
  constexpr int kPitch = kStagedPitch<Tile>, kRowChunks = Tile::kCols / kChunk;
  DP_DYNAMIC_SHARED(uint4, shared);
  auto* const staged = reinterpret_cast<unsigned*>(shared);
  uint4* const weights = shared + ThinProduct::kStagedChunks;
  auto* const offsets = reinterpret_cast<int*>(weights + product.weight_chunks());  // of a patch's elements
  auto* const lines = reinterpret_cast<std::uint16_t*>(offsets + product.steps * 16);
  const ThinPatches& patches = product.patches;
  const ForwardPoints points(patches.geometry, 0);
  const int depth = points.depth(), cells = points.rows();
  const int first_row = static_cast<int>(blockIdx.x) * Tile::kRows, end = min(first_row + Tile::kRows, cells);
  const int first_channel = static_cast<int>(blockIdx.y) * Tile::kCols;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;

  patches.copy<Tile::kThreads>(lines, x, first_row, end);
  {
    constexpr int kAside = Tile::kThreads / Tile::kCols;  // threads that copy the weights of one channel
    const int channel = thread / kAside, col = first_channel + channel;
    auto* const own = reinterpret_cast<std::uint16_t*>(weights + channel * product.weight_pitch());
#pragma unroll 8
    for (int k = thread % kAside; k < product.steps * 16; k += kAside)
      own[k] = k < depth && col < points.cols() ? w[points.b_row(col).offset + points.b_k(k).offset] : std::uint16_t{0};
  }
  for (int k = thread; k < product.steps * 16; k += Tile::kThreads) offsets[k] = k < depth ? patches.of_element(k) : -1;
  __syncthreads();

  const int first_line = patches.first_line(first_row);
  const Ending ending{1, product.bias != 0, product.relu != 0, false, false};
#pragma unroll 1
  for (int i = 0; i < Tile::kDown; ++i) {
    const int row = warp_row<Tile>() + i * 16 + lane / 4;  // and row + 8
    int bases[2];
    for (int half = 0; half < 2; ++half) {
      const int m = first_row + row + half * 8;
      bases[half] = m < end ? patches.of_cell(m, first_line) : -1;
    }
    const auto value = [&](int lower, int offset) {
      return bases[lower] >= 0 && offset >= 0 ? lines[bases[lower] + offset] : std::uint16_t{0};
    };
    float sums[Tile::kAcross][4] = {};
#pragma unroll 1
    for (int step = 0; step < product.steps; ++step) {
      unsigned a[4];
#pragma unroll
      for (int right = 0; right < 2; ++right) {
        const int2 at = *reinterpret_cast<const int2*>(offsets + step * 16 + right * 8 + lane % 4 * 2);
        for (int half = 0; half < 2; ++half) a[right * 2 + half] = pair_of(value(half, at.x), value(half, at.y));
      }
#pragma unroll
      for (int j = 0; j < Tile::kAcross; j += 2) {
        unsigned b[4];
        ptx::ldmatrix_x4(
            b, weights + (j * 8 + lane % 8 + lane / 16 * 8) * product.weight_pitch() + step * 2 + lane / 8 % 2);
        const unsigned low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
        mma<Low>(sums[j], a, low);
        mma<Low>(sums[j + 1], a, high);
      }
    }
#pragma unroll
    for (int j = 0; j < Tile::kAcross; ++j) {
      const int col = j * 8 + lane % 4 * 2, channel = first_channel + col;
      float biases[2] = {0, 0};
      if (ending.bias && channel < points.cols()) biases[0] = bias[channel], biases[1] = bias[channel + 1];
      for (int half = 0; half < 2; ++half)
        staged[(row + half * 8) * kPitch + col / 2] = rounded_pair<Low>(
            ended(sums[j][half * 2], biases, 0, ending), ended(sums[j][half * 2 + 1], biases, 1, ending));
    }
  }
  __syncthreads();
#pragma unroll 4
  for (int at = thread; at < Tile::kRows * kRowChunks; at += Tile::kThreads) {
    const int row = at / kRowChunks, chunk = first_channel / kChunk + at % kRowChunks;
    if (first_row + row < cells && chunk < product.out_chunks)
      y[static_cast<long long>(first_row + row) * product.out_chunks + chunk] =
          *reinterpret_cast<const uint4*>(staged + row * kPitch + at % kRowChunks * 4);
  }
  moments.take<Low, Tile>(staged, static_cast<int>(blockIdx.x), first_channel);
}

ThinProduct product_of(const Geometry& g, bool bias, bool relu) {
  const ThinPatches patches(g);
  return {patches, g.out_channels / kChunk, (patches.depth() + 15) / 16, bias, relu};
}

void enqueue_product(cudaStream_t stream, DType type, const ThinProduct& product, const void* x, const void* w,
                     const void* bias, void* y, const StoredMoments& moments) {
  const dim3 grid(blocks_for(product.patches.cells(), ThinTile::kRows),
                  blocks_for(product.out_chunks, ThinTile::kCols / kChunk));
  launch({"thin_mma_forward", grid, dim3(ThinTile::kThreads), stream, product.shared_bytes()},
         type == DType::bf16 ? thin_mma_forward_kernel<BFloat16> : thin_mma_forward_kernel<Float16>,
         static_cast<const std::uint16_t*>(x), static_cast<const std::uint16_t*>(w), static_cast<const float*>(bias),
         static_cast<uint4*>(y), moments, product);
}

class ThinMmaForwardOp final : public CudaOp {
 public:
  ThinMmaForwardOp(const Conv2dForward& d, const Geometry& g) : product_(product_of(g, d.bias, d.relu)) {
    tensors_ = {d.x, d.w, d.y};
  }
  std::string implementation() const override { return kThinName; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<Conv2dForward>(pointers);
    check_on_16_bytes({args.y});
    enqueue_product(stream, tensors_[0].type, product_, args.x, args.w, args.b, args.y, {});
  }

 private:
  ThinProduct product_;
};

class ThinMmaNormForwardOp final : public CudaOp {
 public:
  ThinMmaNormForwardOp(const NormConv2dForward& d, const Geometry& g)
      : product_(product_of(g, false, false)),
        moments_(d, static_cast<unsigned>(product_.patches.cells()), ThinTile::kRows, ThinTile::kCols) {
    tensors_ = {d.x, d.w, d.y};
  }
  std::size_t workspace_bytes() const override { return moments_.workspace_bytes(); }
  std::string implementation() const override { return kThinFusedName; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<NormConv2dForward>(pointers);
    check_on_16_bytes({args.y});
    enqueue_product(stream, tensors_[0].type, product_, args.x, args.w, nullptr, args.y,
                    moments_.into(workspace, args.moments, args.y_stats));
  }

 private:
  ThinProduct product_;
  MomentsOfTiles moments_;
};

}  // namespace

bool thin_forward_fits(const Geometry& geometry, std::size_t shared_memory) {
  return product_of(geometry, false, false).shared_bytes() <= shared_memory;
}

std::unique_ptr<CudaOp> make_thin_mma(const Conv2dForward& d) {
  return std::make_unique<ThinMmaForwardOp>(d, geometry_of(d.x, d.w, d.y, d.window));
}

std::unique_ptr<CudaOp> make_thin_mma(const NormConv2dForward& d) {
  return std::make_unique<ThinMmaNormForwardOp>(d, geometry_of(d.x, d.w, d.y, d.window));
}

}  // namespace dp::kernels::cuda
