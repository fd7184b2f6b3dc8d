// NormConv2dBackwardWeights on tensor cores. x is normalised in shared memory, after its
// copy and before the multiplication.
#include "kernels/conv/cuda_gemm_conv.h"
#include "kernels/conv/cuda_mma.h"
#include "kernels/conv/cuda_mma_resident.h"
#include "kernels/conv/cuda_mma_tile.h"
#include "kernels/conv/cuda_mma_weights.h"
#include "kernels/linear/cuda_gemm_tile.h"
#include "kernels/op_args.h"

namespace dp::kernels::cuda {
namespace {

// Batch normalisation of x.
struct Normalization {
  const double* stats;
  const float *weight, *bias;

  __device__ NormAffine of(int channel, int channels) const {
    return norm_affine(stats, weight, bias, static_cast<unsigned>(channels), static_cast<unsigned>(channel));
  }
};

// Tiled kernel. Padding is not normalised: it stays zero.
template <typename Low, typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    conv_mma_norm_weights_kernel(const uint4* x, Normalization norm, const uint4* dy, float* out, MmaWeights weights) {
  DP_DYNAMIC_SHARED(uint4, ring);
  DP_SHARED(NormNumbers<Tile::kRows>, numbers, [1]);
  const Windows& windows = weights.windows;
  const int channels = windows.chunks * kChunk, all_rows = windows.taps() * channels;
  for (int i = static_cast<int>(threadIdx.x); i < Tile::kRows; i += Tile::kThreads) {
    const int row = static_cast<int>(blockIdx.x) * Tile::kRows + i;  // (tap, channel)
    if (row < all_rows) numbers[0].set(i, norm.of(row % channels, channels));
  }
  // No barrier is needed here: multiply_windows() passes one before it uses `numbers`.
  multiply_windows<Low, Tile>(ring, x, dy, out, weights, [&](const auto& rows, uint4* stage, int step) {
    rows.change(stage, step, [&](uint4& chunk) {
      chunk = rounded<Low>(numbers[0].rectified_chunk(rows.own_place() * kChunk, values_of<Low>(chunk)));
    });
  });
}

// Normalises and rectifies a chunk whose first channel is `at`, two channels at a time:
// more would need more registers than the resident sums leave.
template <typename Low>
__device__ __forceinline__ uint4 rectified_in_turn(const NormNumbers<kResidentChannels>& numbers, int at, uint4 chunk) {
#pragma unroll 1
  for (int k = at; k < at + kChunk; k += 2) {
    const float2 pair = floats_of<Low>(chunk.x);
    const auto one = [&](float x, int i) {
      return rectified(normalized(x, numbers.shift[i], numbers.scale[i], numbers.offset[i]));
    };
    chunk = make_uint4(chunk.y, chunk.z, chunk.w, rounded_pair<Low>(one(pair.x, k), one(pair.y, k + 1)));
  }
  return chunk;
}

template <typename Low>
__global__ void __launch_bounds__(ResidentWeights::kThreads, 1)
    conv_mma_norm_resident_weights_kernel(const uint4* x, Normalization norm, const uint4* dy, float* out,
                                          MmaWeights weights) {
  DP_DYNAMIC_SHARED(uint4, shared);
  DP_SHARED(NormNumbers<kResidentChannels>, numbers, [1]);
  const int thread = static_cast<int>(threadIdx.x), channels = weights.windows.chunks * kChunk;
  if (thread < kResidentChannels)
    numbers[0].set(thread, norm.of(static_cast<int>(blockIdx.x) * kResidentChannels + thread, channels));
  __syncthreads();
  multiply_all_taps<Low>(shared, x, dy, out, weights, [&](uint4& chunk) {
    chunk = rectified_in_turn<Low>(numbers[0], thread % kRowChunks * kChunk, chunk);
  });
}

struct Operands {
  const uint4* x;
  Normalization norm;
  const uint4* dy;
};

template <typename Low, typename Tile>
void enqueue_tiles(cudaStream_t stream, const MmaWeights& weights, const Operands& from, float* out) {
  launch({"conv_mma_norm_weights", weights_grid<Tile>(weights), dim3(Tile::kThreads), stream, Tile::kSharedBytes},
         conv_mma_norm_weights_kernel<Low, Tile>, from.x, from.norm, from.dy, out, weights);
}

template <typename Low>
void enqueue_weights(cudaStream_t stream, MmaTileKind tile, const MmaWeights& weights, const Operands& from,
                     float* out) {
  switch (tile) {
    case MmaTileKind::large: return enqueue_tiles<Low, LargeMmaTile>(stream, weights, from, out);
    case MmaTileKind::tall: return enqueue_tiles<Low, TallMmaTile>(stream, weights, from, out);
    case MmaTileKind::middle: return enqueue_tiles<Low, MiddleMmaTile>(stream, weights, from, out);
    case MmaTileKind::small: return enqueue_tiles<Low, SmallMmaTile>(stream, weights, from, out);
    case MmaTileKind::resident:
      return launch({"conv_mma_norm_resident_weights", resident_grid(weights), dim3(ResidentWeights::kThreads), stream,
                     ResidentWeights::bytes(weights.windows.width)},
                    conv_mma_norm_resident_weights_kernel<Low>, from.x, from.norm, from.dy, out, weights);
    case MmaTileKind::warpgroup:  // this kernel does not normalise
    case MmaTileKind::wgmma_wide:
    case MmaTileKind::wgmma_narrow: break;  // not for weight gradients
  }
}

class MmaNormWeightsOp final : public CudaOp {
 public:
  MmaNormWeightsOp(const NormConv2dBackwardWeights& d, const Geometry& g, const MmaChoice& choice)
      : geometry_(g),
        weights_{.windows = forward_windows(g), .out_chunks = g.out_channels / kChunk, .splits = choice.splits},
        choice_(choice) {
    tensors_ = {d.x, d.dy, d.dw};
  }
  std::size_t workspace_bytes() const override {
    const auto results = static_cast<std::size_t>(tensors_[2].shape.numel());
    return choice_.splits == 1 ? 0 : static_cast<std::size_t>(choice_.splits) * results * sizeof(float);
  }
  std::string implementation() const override { return mma_fused_name(choice_); }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<NormConv2dBackwardWeights>(pointers);
    check_on_16_bytes({args.x, args.dy});
    const Operands from{static_cast<const uint4*>(args.x),
                        {static_cast<const double*>(args.stats), in(args.weight), in(args.bias)},
                        static_cast<const uint4*>(args.dy)};
    const bool whole = choice_.splits == 1;
    const auto run = tensors_[0].type == DType::bf16 ? enqueue_weights<BFloat16> : enqueue_weights<Float16>;
    run(stream, choice_.tile, weights_, from, out(whole ? args.dw : workspace));
    if (!whole)
      enqueue_end<WeightsPoints>(stream, out(workspace), nullptr, out(args.dw), geometry_,
                                 {choice_.splits, false, false, false, false});
  }

 private:
  Geometry geometry_;
  MmaWeights weights_;
  MmaChoice choice_;
};

}  // namespace

std::unique_ptr<CudaOp> make_mma(const NormConv2dBackwardWeights& d, const MmaChoice& choice, int) {
  return std::make_unique<MmaNormWeightsOp>(d, geometry_of(d.x, d.dw, d.dy, d.window), choice);
}

}  // namespace dp::kernels::cuda
