// LinearForward, LinearBackwardData, LinearBackwardWeights: convolutions of one-cell images.
#include <optional>

#include "kernels/conv/cuda_gemm_conv.h"
#include "kernels/device/cuda/cuda_op.h"
#include "kernels/linear/cuda_gemm.h"
#include "kernels/op_args.h"

namespace dp::kernels::cuda {
namespace {

class LinearForwardOp final : public CudaOp {
 public:
  LinearForwardOp(const LinearTensors& t, const Geometry& g, bool bias, bool relu, const CudaOpOptions& options)
      : gemm_(t.x.type, g, 1, bias, relu, input_in_quads(g), weights_in_quads(g), options.gemm) {
    tensors_ = {t.x, t.w, t.y};
  }

  std::size_t workspace_bytes() const override { return gemm_.workspace_bytes(); }
  std::string implementation() const override { return gemm_.name(); }
  std::vector<GemmChoice> alternatives() const override { return gemm_.alternatives(); }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<LinearForward>(pointers);
    gemm_.enqueue(stream, "linear_forward", args.x, args.w, in(args.b), args.y, nullptr, out(workspace), {});
  }

 private:
  ForwardGemm gemm_;
};

class LinearBackwardDataOp final : public CudaOp {
 public:
  LinearBackwardDataOp(const LinearTensors& t, const Geometry& g, const CudaOpOptions& options)
      : gemm_(t.x.type, g, 1, false, false, output_in_quads(g), weights_in_quads(g), options.gemm) {
    tensors_ = {t.y, t.w, t.x};
  }

  std::size_t workspace_bytes() const override { return gemm_.workspace_bytes(); }
  std::string implementation() const override { return gemm_.name(); }
  std::vector<GemmChoice> alternatives() const override { return gemm_.alternatives(); }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<LinearBackwardData>(pointers);
    gemm_.enqueue(stream, "linear_backward_data", args.dy, args.w, nullptr, args.dx, nullptr, out(workspace), {});
  }

 private:
  DataGemm gemm_;
};

class LinearBackwardWeightsOp final : public CudaOp {
 public:
  LinearBackwardWeightsOp(const LinearTensors& t, const Geometry& g, bool bias, const CudaOpOptions& options)
      : gemm_(t.x.type, g, 1, bias, false, input_in_quads(g), output_in_quads(g), options.gemm) {
    tensors_ = {t.x, t.y, t.w};
  }

  std::size_t workspace_bytes() const override { return gemm_.workspace_bytes(); }
  std::string implementation() const override { return gemm_.name(); }
  std::vector<GemmChoice> alternatives() const override { return gemm_.alternatives(); }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<LinearBackwardWeights>(pointers);
    gemm_.enqueue(stream, "linear_backward_weights", args.x, args.dy, nullptr, args.dw, out(args.db), out(workspace),
                  {});
  }

 private:
  WeightsGemm gemm_;
};

}  // namespace

std::unique_ptr<CudaOp> make(const LinearForward& d, const CudaOpOptions& options) {
  const LinearTensors t = resolved_linear(d.x, d.w, d.y);
  return std::make_unique<LinearForwardOp>(t, linear_geometry(t.x, t.w), d.bias, d.relu, options);
}

std::unique_ptr<CudaOp> make(const LinearBackwardData& d, const CudaOpOptions& options) {
  const LinearTensors t = resolved_linear(d.dx, d.w, d.dy);
  return std::make_unique<LinearBackwardDataOp>(t, linear_geometry(t.x, t.w), options);
}

std::unique_ptr<CudaOp> make(const LinearBackwardWeights& d, const CudaOpOptions& options) {
  const LinearTensors t = resolved_linear(d.x, d.dw, d.dy);
  return std::make_unique<LinearBackwardWeightsOp>(t, linear_geometry(t.x, t.w), d.bias, options);
}

}  // namespace dp::kernels::cuda
