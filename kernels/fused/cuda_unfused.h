// Fused ops on GPUs whose members run one after another. This is the baseline. For convolutions with batch
// normalisation it is also, with the fastest convolution, one more candidate beside the fused kernels.
#pragma once

#include <optional>

#include "kernels/device/cuda/cuda_op.h"
#include "kernels/fused/members.h"

namespace dp::kernels::cuda {

class UnfusedOp final : public CudaOp {
 public:
  explicit UnfusedOp(Members<CudaOp> members);
  std::size_t workspace_bytes() const override { return members_.workspace_bytes(); }
  std::string implementation() const override;
  bool rounds_to_tf32() const override { return tf32_; }
  bool uses_libraries() const override { return uses_libraries_; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> args, void* workspace) override;

 private:
  Members<CudaOp> members_;
  bool tf32_ = false, uses_libraries_ = false;
};

template <Fused Desc>
std::unique_ptr<CudaOp> unfused(const Desc& desc, const CudaOpOptions& options) {
  return std::make_unique<UnfusedOp>(
      members_of<CudaOp>(desc, [&](const auto& member) { return make(member, options); }));
}

// The convolution in a convolution fused with batch normalisation; nullopt for other ops.
std::optional<OpDesc> inner_convolution(const OpDesc& desc);
// The op with this convolution. `desc`: one for which inner_convolution() returns a convolution. Null if `convolution`
// is null.
std::unique_ptr<CudaOp> unfused(const OpDesc& desc, std::unique_ptr<CudaOp> convolution, const CudaOpOptions& options);
// implementation() of this op.
std::string unfused_name(const std::string& convolution);

}  // namespace dp::kernels::cuda
