// Conv2dBackwardData.
#include "kernels/cuda/cuda_op.h"
#include "kernels/cuda/gemm/conv_geometry.h"
#include "kernels/cuda/gemm/gemm_enqueue.h"
#include "kernels/op_args.h"

namespace dp::kernels::cuda {

template class Gemm<DataPoints, Nothing>;

namespace {

class Conv2dBackwardDataOp final : public CudaOp {
 public:
  Conv2dBackwardDataOp(const Conv2dBackwardData& d, const CudaOpOptions& options) : gemm_(gemm(d, options)) {
    tensors_ = {d.dy, d.w, d.dx};
  }

  std::size_t workspace_bytes() const override { return gemm_.workspace_bytes(); }
  std::string implementation() const override { return gemm_.name(); }
  std::vector<GemmChoice> alternatives() const override { return gemm_.alternatives(); }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<Conv2dBackwardData>(pointers);
    gemm_.enqueue(stream, "conv2d_backward_data", args.dy, args.w, nullptr, args.dx, nullptr, out(workspace), {});
  }

 private:
  static DataGemm gemm(const Conv2dBackwardData& d, const CudaOpOptions& options) {
    const Geometry g = geometry_of(d.dx, d.w, d.dy, d.window);
    return {d.w.type, g, g.stride * g.stride, false, false, output_in_quads(g), weights_in_quads(g), options.gemm};
  }

  DataGemm gemm_;
};

}  // namespace

std::unique_ptr<CudaOp> make(const Conv2dBackwardData& d, const CudaOpOptions& options) {
  return std::make_unique<Conv2dBackwardDataOp>(
      Conv2dBackwardData{resolved_channels_last(d.dy), resolved_channels_last(d.w), resolved_channels_last(d.dx),
                         d.window},
      options);
}

}  // namespace dp::kernels::cuda
