// Conv2dBackwardWeights.
#include "kernels/cuda/cuda_op.h"
#include "kernels/cuda/gemm/conv_geometry.h"
#include "kernels/cuda/gemm/conv_thin.h"
#include "kernels/cuda/gemm/gemm_enqueue.h"
#include "kernels/op_args.h"

namespace dp::kernels::cuda {

template class Gemm<WeightsPoints, Nothing>;

namespace {

class ThinWeightsOp final : public CudaOp {
 public:
  ThinWeightsOp(const Conv2dBackwardWeights& d, const Geometry& g) : thin_(d.x.type, g, d.bias) {
    tensors_ = {d.x, d.dy, d.dw};
  }

  std::size_t workspace_bytes() const override { return thin_.workspace_bytes(); }
  std::string implementation() const override { return "own:thin"; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<Conv2dBackwardWeights>(pointers);
    thin_.enqueue(stream, args.x, args.dy, out(args.dw), out(args.db), out(workspace));
  }

 private:
  ThinWeights thin_;
};

class Conv2dBackwardWeightsOp final : public CudaOp {
 public:
  Conv2dBackwardWeightsOp(const Conv2dBackwardWeights& d, const Geometry& g, const CudaOpOptions& options)
      : gemm_(d.x.type, g, 1, d.bias, false, input_in_quads(g), output_in_quads(g), options.gemm) {
    tensors_ = {d.x, d.dy, d.dw};
  }

  std::size_t workspace_bytes() const override { return gemm_.workspace_bytes(); }
  std::string implementation() const override { return gemm_.name(); }
  std::vector<GemmChoice> alternatives() const override { return gemm_.alternatives(); }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<Conv2dBackwardWeights>(pointers);
    gemm_.enqueue(stream, "conv2d_backward_weights", args.x, args.dy, nullptr, args.dw, out(args.db), out(workspace),
                  {});
  }

 private:
  WeightsGemm gemm_;
};

}  // namespace

std::unique_ptr<CudaOp> make(const Conv2dBackwardWeights& d, const CudaOpOptions& options) {
  const Conv2dBackwardWeights resolved{resolved_channels_last(d.x), resolved_channels_last(d.dy),
                                       resolved_channels_last(d.dw), d.window, d.bias};
  const Geometry g = geometry_of(resolved.x, resolved.dw, resolved.dy, d.window);
  if (is_thin(g)) return std::make_unique<ThinWeightsOp>(resolved, g);
  return std::make_unique<Conv2dBackwardWeightsOp>(resolved, g, options);
}

}  // namespace dp::kernels::cuda
