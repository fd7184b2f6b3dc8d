#include "kernels/fused/cuda_fused_op.h"

#include "kernels/fused/fused_steps.h"

namespace dp::kernels::cuda {
namespace {

class FusedCudaOp final : public CudaOp {
 public:
  FusedCudaOp(const OpDesc& desc, std::unique_ptr<CudaOp> convolution, const CudaOpOptions& options)
      : name_(unfused_name(convolution->implementation())),
        tf32_(convolution->rounds_to_tf32()),
        uses_libraries_(convolution->uses_libraries()) {
    tensors_ = convolution->tensors();
    std::visit(
        [&](const auto& d) {
          if constexpr (FusedConvolution<std::decay_t<decltype(d)>>)
            steps_ = fused_steps(d, std::move(convolution), [&](const auto& part) { return make(part, options); });
        },
        desc);
  }
  std::size_t workspace_bytes() const override { return steps_.workspace_bytes(); }
  std::string implementation() const override { return name_; }
  bool rounds_to_tf32() const override { return tf32_; }
  bool uses_libraries() const override { return uses_libraries_; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> args, void* workspace) override {
    steps_.run(args, workspace,
               [&](CudaOp& op, std::span<void* const> own, void* rest) { op.run_on(stream, own, rest); });
  }

 private:
  std::string name_;
  bool tf32_, uses_libraries_;
  FusedSteps<CudaOp> steps_;
};

template <FusedConvolution Desc>
std::unique_ptr<CudaOp> baseline(const Desc& desc, const CudaOpOptions& options) {
  return unfused(desc, make(convolution_of(desc), options), options);
}

}  // namespace

std::unique_ptr<CudaOp> unfused(const OpDesc& desc, std::unique_ptr<CudaOp> convolution, const CudaOpOptions& options) {
  return convolution == nullptr ? nullptr : std::make_unique<FusedCudaOp>(desc, std::move(convolution), options);
}

std::string unfused_name(const std::string& convolution) { return "unfused: " + convolution; }

std::unique_ptr<CudaOp> make(const NormConv2dForward& desc, const CudaOpOptions& options) {
  return baseline(desc, options);
}
std::unique_ptr<CudaOp> make(const NormConv2dBackwardData& desc, const CudaOpOptions& options) {
  return baseline(desc, options);
}
std::unique_ptr<CudaOp> make(const NormConv2dBackwardWeights& desc, const CudaOpOptions& options) {
  return baseline(desc, options);
}

}  // namespace dp::kernels::cuda
