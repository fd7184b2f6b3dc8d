// Conv2dForward.
#include "kernels/cuda/cuda_op.h"
#include "kernels/cuda/gemm/conv_geometry.h"
#include "kernels/cuda/gemm/conv_thin.h"
#include "kernels/cuda/gemm/gemm_enqueue.h"
#include "kernels/op_args.h"

namespace dp::kernels::cuda {

template class Gemm<ForwardPoints, Nothing>;

namespace {

class ThinForwardOp final : public CudaOp {
 public:
  ThinForwardOp(const Conv2dForward& d, const Geometry& g) : thin_(d.x.type, g, d.bias, d.relu) {
    tensors_ = {d.x, d.w, d.y};
  }
  std::string implementation() const override { return "own:thin"; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<Conv2dForward>(pointers);
    thin_.enqueue(stream, args.x, args.w, in(args.b), args.y);
  }

 private:
  ThinForward thin_;
};

class Conv2dForwardOp final : public CudaOp {
 public:
  Conv2dForwardOp(const Conv2dForward& d, const Geometry& g, const CudaOpOptions& options)
      : gemm_(d.x.type, g, 1, d.bias, d.relu, input_in_quads(g), weights_in_quads(g), options.gemm) {
    tensors_ = {d.x, d.w, d.y};
  }

  std::size_t workspace_bytes() const override { return gemm_.workspace_bytes(); }
  std::string implementation() const override { return gemm_.name(); }
  std::vector<GemmChoice> alternatives() const override { return gemm_.alternatives(); }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<Conv2dForward>(pointers);
    gemm_.enqueue(stream, "conv2d_forward", args.x, args.w, in(args.b), args.y, nullptr, out(workspace), {});
  }

 private:
  ForwardGemm gemm_;
};

}  // namespace

std::unique_ptr<CudaOp> make(const Conv2dForward& d, const CudaOpOptions& options) {
  const Conv2dForward resolved{
      resolved_channels_last(d.x), resolved_channels_last(d.w), resolved_channels_last(d.y), d.window, d.bias, d.relu};
  const Geometry g = geometry_of(resolved.x, resolved.w, resolved.y, d.window);
  if (is_thin(g)) return std::make_unique<ThinForwardOp>(resolved, g);
  return std::make_unique<Conv2dForwardOp>(resolved, g, options);
}

}  // namespace dp::kernels::cuda
