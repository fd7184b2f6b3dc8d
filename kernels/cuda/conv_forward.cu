// Conv2dForward.
#include "kernels/cuda/conv_geometry.h"
#include "kernels/cuda/cuda_op.h"
#include "kernels/cuda/gemm_enqueue.h"

namespace dp::kernels::cuda {

template class Gemm<ForwardPoints>;

namespace {

class Conv2dForwardOp final : public CudaOp {
 public:
  explicit Conv2dForwardOp(const Conv2dForward& d) : gemm_(gemm(d.x, d.w, d.y, d)) { tensors_ = {d.x, d.w, d.y}; }

  std::size_t workspace_bytes() const override { return gemm_.workspace_bytes(); }
  std::string implementation() const override { return gemm_.name(); }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> args, void* workspace) override {
    gemm_.enqueue(stream, "conv2d_forward", in(args[0]), in(args[1]), in(args[2]), out(args[3]), out(workspace));
  }

 private:
  static ForwardGemm gemm(const TensorDesc& x, const TensorDesc& w, const TensorDesc& y, const Conv2dForward& d) {
    const Geometry g = geometry_of(x, w, y, d.window);
    return {g, 1, d.bias, d.relu, input_in_quads(g), weights_in_quads(g)};
  }

  ForwardGemm gemm_;
};

}  // namespace

std::unique_ptr<CudaOp> make(const Conv2dForward& d, const CudaOpOptions&) {
  return std::make_unique<Conv2dForwardOp>(Conv2dForward{resolved_channels_last(d.x), resolved_channels_last(d.w),
                                                         resolved_channels_last(d.y), d.window, d.bias, d.relu});
}

}  // namespace dp::kernels::cuda
