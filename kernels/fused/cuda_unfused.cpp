#include "kernels/fused/cuda_unfused.h"

namespace dp::kernels::cuda {
namespace {

template <typename D>
concept FusedConvolution = requires(const D& desc) {
  desc.convolution();
};

}  // namespace

UnfusedOp::UnfusedOp(Members<CudaOp> members) : members_(std::move(members)) {
  tensors_ = members_.tensors;
  members_.each([this](const CudaOp& op) {
    tf32_ |= op.rounds_to_tf32();
    uses_libraries_ |= op.uses_libraries();
  });
}

std::string UnfusedOp::implementation() const { return unfused_name(members_.name); }

void UnfusedOp::enqueue(cudaStream_t stream, std::span<void* const> args, void* workspace) {
  members_.run(args, workspace,
               [&](CudaOp& op, std::span<void* const> own, void* rest) { op.run_on(stream, own, rest); });
}

std::optional<OpDesc> inner_convolution(const OpDesc& desc) {
  return std::visit(
      []<typename D>(const D& d) -> std::optional<OpDesc> {
        if constexpr (FusedConvolution<D>) return d.convolution();
        return {};
      },
      desc);
}

std::unique_ptr<CudaOp> unfused(const OpDesc& desc, std::unique_ptr<CudaOp> convolution, const CudaOpOptions& options) {
  if (convolution == nullptr) return nullptr;
  return std::visit(
      [&]<typename D>(const D& d) -> std::unique_ptr<CudaOp> {
        if constexpr (FusedConvolution<D>) {
          const auto make_member = [&]<typename M>(const M& member) {
            if constexpr (std::is_same_v<M, decltype(d.convolution())>)
              return std::move(convolution);
            else
              return make(member, options);
          };
          return std::make_unique<UnfusedOp>(members_of<CudaOp>(d, make_member));
        } else {
          return nullptr;
        }
      },
      desc);
}

std::string unfused_name(const std::string& convolution) { return "unfused: " + convolution; }

std::unique_ptr<CudaOp> make(const NormConv2dForward& desc, const CudaOpOptions& options) {
  return unfused(desc, options);
}
std::unique_ptr<CudaOp> make(const NormConv2dBackwardData& desc, const CudaOpOptions& options) {
  return unfused(desc, options);
}
std::unique_ptr<CudaOp> make(const NormConv2dBackwardWeights& desc, const CudaOpOptions& options) {
  return unfused(desc, options);
}

}  // namespace dp::kernels::cuda
