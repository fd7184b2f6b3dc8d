// NormConv2dForward on tensor cores: the kernels of Conv2dForward, extended to normalise the
// image after its copy to shared memory and to compute the moments of the stored results.
#include <type_traits>

#include "kernels/conv/cuda_gemm_conv.h"
#include "kernels/conv/cuda_mma.h"
#include "kernels/conv/cuda_mma_enqueue.h"
#include "kernels/conv/cuda_mma_norm.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/op_args.h"

namespace dp::kernels::cuda {
namespace {

// conv_mma_kernel with normalisation and moments. Null stats: the image is not normalised.
template <typename Low, typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    norm_conv_mma_kernel(const uint4* image, const double* stats, const float* scale, const float* offset,
                         const uint4* weights, uint4* out, StoredMoments moments, MmaProduct product) {
  DP_DYNAMIC_SHARED(uint4, ring);
  DP_SHARED(Tap, taps, [kTapPlaces]);
  const Windows& windows = product.parts[0];
  const int first_row = static_cast<int>(blockIdx.x) * Tile::kRows;
  const int first_chunk = static_cast<int>(blockIdx.y) * (Tile::kCols / kChunk);
  const int depth = windows.taps() * windows.chunks, channels = product.out_chunks * kChunk;
  const ImageNorm norm(reinterpret_cast<float*>(ring + Tile::kStages * Tile::kStageChunks), product.channels);
  if (threadIdx.x < kTapPlaces) taps[threadIdx.x] = windows.tap(static_cast<int>(threadIdx.x));
  if (stats != nullptr) norm.find(stats, scale, offset);
  __syncthreads();

  const WindowRows<Tile> rows(image, windows, taps, first_row);
  const DenseRows<Tile> cols(weights, channels, depth, first_chunk * kChunk);
  MmaSums<Tile> sums = {};
  multiply<Low, Tile, true, true>(
      ring, (depth * kChunk + Tile::kStep - 1) / Tile::kStep,
      [&](uint4* stage, int step) {
        rows.load(stage, step);
        cols.load(stage + Tile::kChunksA, step);
      },
      sums,
      [&](uint4* stage, int step) {
        if (stats == nullptr) return;
        const ImageNorm::OfChunk own = norm.of_chunk(rows.own_chunk(step));
        rows.change(stage, step, [&](uint4& chunk) { chunk = own.normalized_and_rectified<Low>(chunk); });
      });
  auto* const staged = reinterpret_cast<unsigned*>(ring);
  store_results<Low, Tile>(staged, sums, nullptr, out, product, windows, first_row, first_chunk);
  moments.take<Low, Tile>(staged, static_cast<int>(blockIdx.x), first_chunk * kChunk);
}

// conv_mma_resident_kernel with normalisation and moments. Null stats: the image is not
// normalised. A tile of rows is a run.
template <typename Low>
__global__ void __launch_bounds__(ResidentTile::kThreads, ResidentTile::kBlocks)
    norm_conv_mma_resident_kernel(const uint4* image, const double* stats, const float* scale, const float* offset,
                                  const uint4* weights, uint4* out, StoredMoments moments, MmaProduct product) {
  using Tile = ResidentTile;
  DP_DYNAMIC_SHARED(uint4, shared);
  const Windows& windows = product.parts[0];
  const int first_chunk = static_cast<int>(blockIdx.y) * kRowChunks;
  const int reach = reach_of(windows.width);
  const ImageNorm norm(reinterpret_cast<float*>(shared + (ResidentRows(windows.width).zeros + 1) * kRowChunks),
                       kResidentChannels);
  if (stats != nullptr) {
    norm.find(stats, scale, offset);
    __syncthreads();
  }
  multiply_runs<Low, false>(
      shared, image, weights, product,
      [&](unsigned* staged, const MmaSums<Tile>& sums, int run) {
        store_results<Low, Tile>(staged, sums, nullptr, out, product, windows, run * Tile::kRows, first_chunk);
        moments.take<Low, Tile>(staged, run, first_chunk * kChunk);
      },
      [&](uint4* cells, int run) {
        static_assert(Tile::kThreads % kRowChunks == 0);
        if (stats == nullptr) return;
        const int own_chunk = static_cast<int>(threadIdx.x) % kRowChunks, first = run * Tile::kRows - reach;
        const ImageNorm::OfChunk own = norm.of_chunk(own_chunk);
#pragma unroll 1
        for (int row = static_cast<int>(threadIdx.x) / kRowChunks; row < Tile::kRows + 2 * reach;
             row += Tile::kThreads / kRowChunks)
          if (first + row >= 0 && first + row < windows.cells) {
            uint4& chunk = cells[swizzled<kRowChunks>(row, own_chunk)];
            chunk = own.normalized_and_rectified<Low>(chunk);
          }
      });
}

// conv_wgmma_kernel with normalisation and moments. Null stats: the image is not normalised. A tile of rows is a run.
template <typename Low, typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    norm_conv_wgmma_kernel(const uint4* image, const double* stats, const float* scale, const float* offset,
                           const uint4* weights, uint4* out, StoredMoments moments, MmaProduct product) {
  DP_DYNAMIC_SHARED(uint4, shared);
  const Windows& windows = product.parts[0];
  const int first_chunk = static_cast<int>(blockIdx.y) * (Tile::kCols / kChunk);
  uint4* const numbers = WgmmaRows<Tile>(windows.width).behind(wgmma_aligned(shared));
  const ImageNorm norm(reinterpret_cast<float*>(numbers), product.channels);
  if (stats != nullptr) {
    norm.find(stats, scale, offset);
    __syncthreads();
  }
  multiply_runs_by_wgmma<Low, Tile, false>(
      shared, image, weights, product,
      [&](unsigned* staged, const MmaSums<Tile>& sums, int run) {
        store_results<Low, Tile>(staged, sums, nullptr, out, product, windows, run * Tile::kRows, first_chunk);
        moments.take<Low, Tile>(staged, run, first_chunk * kChunk);
      },
      [&](uint4& chunk, int number) {
        if (stats != nullptr) chunk = norm.normalized_and_rectified<Low>(chunk, number);
      });
}

struct Tensors {
  const void *x, *stats, *scale, *offset, *w;
  void* y;
};

template <typename Low>
void enqueue_products(cudaStream_t stream, MmaTileKind kind, const MmaProduct& product, int multiprocessors,
                      const Tensors& t, const StoredMoments& moments) {
  const auto run = [&](const Launch& where, auto kernel) {
    launch(where, kernel, static_cast<const uint4*>(t.x), static_cast<const double*>(t.stats),
           static_cast<const float*>(t.scale), static_cast<const float*>(t.offset), static_cast<const uint4*>(t.w),
           static_cast<uint4*>(t.y), moments, product);
  };
  const std::size_t numbers = t.stats != nullptr ? norm_bytes(product.channels) : 0;
  const Windows& windows = product.parts[0];
  with_tile(kind, [&]<typename Tile>() {
    if constexpr (std::is_same_v<Tile, ResidentTile>)
      run({"norm_conv_mma_resident", resident_grid(product, multiprocessors), dim3(Tile::kThreads), stream,
           ResidentRows(windows.width).bytes() + numbers},
          norm_conv_mma_resident_kernel<Low>);
    else if constexpr (kIsWgmmaTile<Tile>)
      run({"norm_conv_wgmma", wgmma_grid<Tile>(product, multiprocessors), dim3(Tile::kThreads), stream,
           WgmmaRows<Tile>(windows.width).bytes() + numbers},
          norm_conv_wgmma_kernel<Low, Tile>);
    else
      run({"norm_conv_mma", grid_of<Tile>(product), dim3(Tile::kThreads), stream, Tile::kSharedBytes + numbers},
          norm_conv_mma_kernel<Low, Tile>);
  });
}

class NormConvOp final : public CudaOp {
 public:
  NormConvOp(const NormConv2dForward& d, const Geometry& g, const MmaChoice& choice, int multiprocessors)
      : product_(forward_product(g, false, false)),
        choice_(choice),
        multiprocessors_(multiprocessors),
        norm_(d.norm),
        moments_(with_tile(choice.tile, [&]<typename Tile>() {
          return MomentsOfTiles(d, static_cast<unsigned>(product_.parts[0].cells), Tile::kRows, Tile::kCols);
        })) {
    tensors_ = {d.x, d.w, d.y};
  }
  std::size_t workspace_bytes() const override { return moments_.workspace_bytes(); }
  std::string implementation() const override { return mma_fused_name(choice_); }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<NormConv2dForward>(pointers);
    check_on_16_bytes({args.x, args.w, args.y});
    const Tensors tensors = norm_ ? Tensors{args.x, args.stats, args.weight, args.bias, args.w, args.y}
                                  : Tensors{args.x, nullptr, nullptr, nullptr, args.w, args.y};
    const auto run = tensors_[0].type == DType::bf16 ? enqueue_products<BFloat16> : enqueue_products<Float16>;
    run(stream, choice_.tile, product_, multiprocessors_, tensors,
        moments_.into(workspace, args.moments, args.y_stats));
  }

 private:
  MmaProduct product_;
  MmaChoice choice_;
  int multiprocessors_;
  bool norm_;
  MomentsOfTiles moments_;
};

}  // namespace

std::unique_ptr<CudaOp> make_mma(const NormConv2dForward& d, const MmaChoice& choice, int multiprocessors) {
  return std::make_unique<NormConvOp>(d, geometry_of(d.x, d.w, d.y, d.window), choice, multiprocessors);
}

}  // namespace dp::kernels::cuda
