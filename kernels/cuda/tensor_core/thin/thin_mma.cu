#include "kernels/cuda/tensor_core/thin/thin_mma.h"

#include <utility>

#include "kernels/cuda/gemm/conv_geometry.h"
#include "kernels/cuda/gemm/conv_thin.h"
#include "kernels/cuda/tensor_core/conv_mma_windows.h"
#include "kernels/cuda/tensor_core/thin/thin_patches.h"

namespace dp::kernels::cuda {
namespace {

constexpr int kLeastCapability = 80;

bool is_low(DType type) { return type == DType::bf16 || type == DType::f16; }

// Shapes as in forward: y may be its gradient. The types of w and its gradient differ, so the caller checks them.
bool fits(const TensorDesc& x, const TensorDesc& y, const Geometry& geometry, const CudaOpOptions& options) {
  return options.compute_capability >= kLeastCapability && is_low(x.type) && y.type == x.type && x.shape[0] > 0 &&
         y.shape[1] % kChunk == 0 && is_channels_last(y) && is_thin(geometry);
}

template <typename Desc>
std::vector<Candidate> one(const char* name, const Desc& desc) {
  return {{family::thin, name, [desc] { return make_thin_mma(desc); }}};
}

template <typename Forward>  // Conv2dForward or NormConv2dForward
std::vector<Candidate> forward_candidates(Forward d, const char* name, const CudaOpOptions& options) {
  for (TensorDesc* const tensor : {&d.x, &d.w, &d.y}) *tensor = resolved_channels_last(*tensor);
  const Geometry g = geometry_of(d.x, d.w, d.y, d.window);
  if (d.w.type != d.x.type || !fits(d.x, d.y, g, options) || !thin_forward_fits(g, options.shared_memory)) return {};
  return one(name, d);
}

std::vector<Candidate> candidates_of(const Conv2dForward& d, const CudaOpOptions& options) {
  return forward_candidates(d, kThinName, options);
}
std::vector<Candidate> candidates_of(const NormConv2dForward& d, const CudaOpOptions& options) {
  if (d.norm) return {};
  return forward_candidates(d, kThinFusedName, options);
}

template <typename Desc>
std::vector<Candidate> candidates_of(const Desc&, const CudaOpOptions&) {
  return {};
}

}  // namespace

std::vector<Candidate> thin_mma_candidates(const OpDesc& desc, const CudaOpOptions& options) {
  return std::visit([&](const auto& d) { return candidates_of(d, options); }, desc);
}

}  // namespace dp::kernels::cuda
