// Conv2dBackwardWeights on tensor cores.
#include <algorithm>
#include <optional>

#include "kernels/conv/cuda_gemm_conv.h"
#include "kernels/conv/cuda_mma.h"
#include "kernels/conv/cuda_mma_resident.h"
#include "kernels/conv/cuda_mma_tile.h"
#include "kernels/conv/cuda_mma_weights.h"
#include "kernels/conv/cuda_warpgroup.h"
#include "kernels/linear/cuda_gemm_tile.h"
#include "kernels/op_args.h"

namespace dp::kernels::cuda {
namespace {

template <typename Low, typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    conv_mma_weights_kernel(const uint4* x, const uint4* dy, float* out, MmaWeights weights) {
  DP_DYNAMIC_SHARED(uint4, ring);
  multiply_windows<Low, Tile>(ring, x, dy, out, weights, [](const auto&, uint4*, int) {});
}

template <typename Low, typename Tile>
void enqueue_tiles(cudaStream_t stream, const MmaWeights& weights, const void* x, const void* dy, float* out) {
  launch({"conv_mma_weights", weights_grid<Tile>(weights), dim3(Tile::kThreads), stream, Tile::kSharedBytes},
         conv_mma_weights_kernel<Low, Tile>, static_cast<const uint4*>(x), static_cast<const uint4*>(dy), out, weights);
}

template <typename Low>
void enqueue_weights(cudaStream_t stream, MmaTileKind tile, const MmaWeights& weights, const void* x, const void* dy,
                     float* out) {
  switch (tile) {
    case MmaTileKind::large: return enqueue_tiles<Low, LargeMmaTile>(stream, weights, x, dy, out);
    case MmaTileKind::tall: return enqueue_tiles<Low, TallMmaTile>(stream, weights, x, dy, out);
    case MmaTileKind::middle: return enqueue_tiles<Low, MiddleMmaTile>(stream, weights, x, dy, out);
    case MmaTileKind::small: return enqueue_tiles<Low, SmallMmaTile>(stream, weights, x, dy, out);
    case MmaTileKind::resident: return enqueue_resident_weights<Low>(stream, weights, x, dy, out);
    case MmaTileKind::warpgroup: return enqueue_warpgroup_weights<Low>(stream, weights, x, dy, out);
    case MmaTileKind::wgmma_wide:
    case MmaTileKind::wgmma_narrow: break;  // not for weight gradients
  }
}

class MmaWeightsOp final : public CudaOp {
 public:
  MmaWeightsOp(const Conv2dBackwardWeights& d, const Geometry& g, const MmaChoice& choice)
      : geometry_(g),
        weights_{.windows = forward_windows(g), .out_chunks = g.out_channels / kChunk, .splits = choice.splits},
        choice_(choice) {
    tensors_ = {d.x, d.dy, d.dw};
    if (d.bias) bias_.emplace(d.dy.type, g);
  }
  std::size_t workspace_bytes() const override {
    const auto results = static_cast<std::size_t>(tensors_[2].shape.numel());
    const std::size_t partials = choice_.splits == 1 ? 0 : static_cast<std::size_t>(choice_.splits) * results;
    return std::max(partials * sizeof(float), bias_ ? bias_->workspace_bytes() : 0);
  }
  std::string implementation() const override { return mma_name(choice_); }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<Conv2dBackwardWeights>(pointers);
    check_on_16_bytes({args.x, args.dy});
    const bool whole = choice_.splits == 1;
    const auto run = tensors_[0].type == DType::bf16 ? enqueue_weights<BFloat16> : enqueue_weights<Float16>;
    run(stream, choice_.tile, weights_, args.x, args.dy, out(whole ? args.dw : workspace));
    if (!whole)
      enqueue_end<WeightsPoints>(stream, out(workspace), nullptr, out(args.dw), geometry_,
                                 {choice_.splits, false, false, false, false});
    if (bias_) bias_->enqueue(stream, args.dy, out(args.db), out(workspace));
  }

 private:
  Geometry geometry_;
  MmaWeights weights_;
  MmaChoice choice_;
  std::optional<BiasGradient> bias_;
};

}  // namespace

std::unique_ptr<CudaOp> make_mma(const Conv2dBackwardWeights& d, const MmaChoice& choice, int) {
  return std::make_unique<MmaWeightsOp>(d, geometry_of(d.x, d.dw, d.dy, d.window), choice);
}

}  // namespace dp::kernels::cuda
