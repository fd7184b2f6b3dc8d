#include "kernels/conv/cuda_mma.h"

#include <algorithm>
#include <limits>

#include "kernels/conv/cuda_gemm_conv.h"
#include "kernels/conv/cuda_mma_norm.h"
#include "kernels/conv/cuda_mma_resident.h"
#include "kernels/conv/cuda_warpgroup.h"
#include "kernels/linear/cuda_gemm.h"

namespace dp::kernels::cuda {
namespace {

constexpr int kLeastCapability = 80;
constexpr std::size_t kMaxCandidates = 8;  // most candidates of an op, without the wgmma kernels

// Whether the tensor is channels last and consists of whole chunks, fewer than 2^30 of them.
bool in_chunks(const TensorDesc& t) {
  return t.shape[1] % kChunk == 0 && is_channels_last(t) &&
         t.shape.numel() / kChunk < std::numeric_limits<int>::max() / 2;
}

// Shapes as in forward: x, w and y may be the gradients of these tensors. `data`: the op is a data gradient.
bool fits(const TensorDesc& x, const TensorDesc& w, const TensorDesc& y, const Window& window, bool data,
          const CudaOpOptions& options) {
  if (!is_plain(x, w, window)) return false;
  const bool parts = !data || window.stride.h * window.stride.w <= kMostParts;
  return options.compute_capability >= kLeastCapability && is_low(x.type) && y.type == x.type && in_chunks(x) &&
         in_chunks(y) && is_channels_last(w) && window.kernel.h * window.kernel.w <= kMostTaps && parts &&
         x.shape[0] > 0;
}

// Whether x and y have the same size and every tap is a fixed offset away, as the resident kernels require.
bool keeps_size(const Window& window) { return window.kernel == 3 && window.stride == 1 && window.padding == 1; }

// `image`: the tensor that a forward or a data gradient convolves. `more`: shared memory
// in bytes, in addition to that of a plain product.
bool product_stays(const TensorDesc& image, const Window& window, const CudaOpOptions& options, std::size_t more = 0) {
  return keeps_size(window) && image.shape[1] == kResidentChannels &&
         ResidentRows(static_cast<int>(image.shape[3])).bytes() + more <= options.shared_memory;
}
bool weights_stay(const TensorDesc& x, const TensorDesc& y, const Window& window, const CudaOpOptions& options,
                  std::size_t more = 0) {
  return keeps_size(window) && x.shape[1] % kResidentChannels == 0 && y.shape[1] % kResidentChannels == 0 &&
         ResidentWeights::bytes(static_cast<int>(x.shape[3])) + ResidentWeights::kMaskBytes + more <=
             options.shared_memory;
}

// The same for the wgmma kernels.
bool warpgroup_product_fits(const TensorDesc& image, const Window& window, const CudaOpOptions& options) {
  return options.wgmma && keeps_size(window) && image.shape[1] == kResidentChannels &&
         WarpgroupProduct::bytes(static_cast<int>(image.shape[3])) <= options.shared_memory;
}
bool warpgroup_weights_fit(const TensorDesc& x, const TensorDesc& y, const Window& window,
                           const CudaOpOptions& options) {
  return options.wgmma && keeps_size(window) && x.shape[1] % kResidentChannels == 0 &&
         y.shape[1] % kResidentChannels == 0 &&
         WarpgroupWeights::bytes(static_cast<int>(x.shape[3])) <= options.shared_memory;
}
// `columns`: channels of the result. `more`: as above.
bool wgmma_product_fits(const TensorDesc& image, std::int64_t columns, const Window& window,
                        const CudaOpOptions& options, std::size_t more = 0) {
  const int width = static_cast<int>(image.shape[3]);
  const bool room = columns > 64 ? WgmmaRows<WgmmaTile<128>>::fits(width, more, options.shared_memory)
                                 : WgmmaRows<WgmmaTile<64>>::fits(width, more, options.shared_memory);
  return options.wgmma && keeps_size(window) && image.shape[1] % kResidentChannels == 0 && room;
}

template <typename Desc>
std::vector<Candidate> candidates(const Desc& desc, const GemmShape& shape, const MmaLimits& limits,
                                  const CudaOpOptions& options, std::string (*name)(const MmaChoice&) = mma_name) {
  std::vector<Candidate> all;
  for (const MmaChoice& choice : mma_choices(shape, limits, kMaxCandidates))
    all.push_back({family_of(choice.tile), name(choice),
                   [desc, choice, count = options.multiprocessors] { return make_mma(desc, choice, count); }});
  return all;
}

std::vector<Candidate> candidates_of(const Conv2dForward& d, const CudaOpOptions& options) {
  const Conv2dForward r{
      resolved_channels_last(d.x), resolved_channels_last(d.w), resolved_channels_last(d.y), d.window, d.bias, d.relu};
  if (r.w.type != r.x.type || !fits(r.x, r.w, r.y, d.window, false, options)) return {};
  return candidates(r, shape_of<ForwardPoints>(geometry_of(r.x, r.w, r.y, d.window), 1),
                    {false, product_stays(r.x, d.window, options), warpgroup_product_fits(r.x, d.window, options),
                     wgmma_product_fits(r.x, r.y.shape[1], d.window, options)},
                    options);
}

std::vector<Candidate> candidates_of(const Conv2dBackwardData& d, const CudaOpOptions& options) {
  const Conv2dBackwardData r{resolved_channels_last(d.dy), resolved_channels_last(d.w), resolved_channels_last(d.dx),
                             d.window};
  if (r.w.type != r.dx.type || !fits(r.dx, r.w, r.dy, d.window, true, options)) return {};
  const int parts = d.window.stride.h * d.window.stride.w;
  return candidates(r, shape_of<DataPoints>(geometry_of(r.dx, r.w, r.dy, d.window), parts),
                    {false, product_stays(r.dy, d.window, options), warpgroup_product_fits(r.dy, d.window, options),
                     wgmma_product_fits(r.dy, r.dx.shape[1], d.window, options)},
                    options);
}

std::vector<Candidate> candidates_of(const Conv2dBackwardWeights& d, const CudaOpOptions& options) {
  const Conv2dBackwardWeights r{resolved_channels_last(d.x), resolved_channels_last(d.dy), resolved_channels_last(d.dw),
                                d.window, d.bias};
  if (r.dw.type != DType::f32 || !fits(r.x, r.dw, r.dy, d.window, false, options)) return {};
  return candidates(
      r, shape_of<WeightsPoints>(geometry_of(r.x, r.dw, r.dy, d.window), 1),
      {true, weights_stay(r.x, r.dy, d.window, options), warpgroup_weights_fit(r.x, r.dy, d.window, options)}, options);
}

// With batch normalisation wgmma is faster for some shapes only (benchmarks/results/gpu-visit-h100-2026-11-27.md).
constexpr bool kFusedFirst = false;
// Static shared memory in the wgmma kernels with batch normalisation, at most.
constexpr std::size_t kStaticBytes = sizeof(NormNumbers<WgmmaTile<128>::kCols>) + 256;

std::vector<Candidate> candidates_of(const NormConv2dForward& d, const CudaOpOptions& options) {
  NormConv2dForward r = d;
  for (TensorDesc* const tensor : {&r.x, &r.w, &r.y}) *tensor = resolved_channels_last(*tensor);
  if (r.w.type != r.x.type || !fits(r.x, r.w, r.y, d.window, false, options)) return {};
  if (d.norm && r.x.shape[1] > kMostNormChannels) return {};
  const std::size_t numbers = d.norm ? norm_bytes(static_cast<int>(r.x.shape[1])) : 0;
  return candidates(r, shape_of<ForwardPoints>(geometry_of(r.x, r.w, r.y, d.window), 1),
                    {false, product_stays(r.x, d.window, options, numbers), false,
                     wgmma_product_fits(r.x, r.y.shape[1], d.window, options, numbers + kStaticBytes), kFusedFirst},
                    options, mma_fused_name);
}

// Shared memory for batch normalisation in the resident kernels of gradients.
constexpr std::size_t kNumbersBytes = sizeof(NormNumbers<kResidentChannels>);

std::vector<Candidate> candidates_of(const NormConv2dBackwardData& d, const CudaOpOptions& options) {
  NormConv2dBackwardData r = d;
  for (TensorDesc* const tensor : {&r.dy, &r.w, &r.dx}) *tensor = resolved_channels_last(*tensor);
  if (r.w.type != r.dx.type || !fits(r.dx, r.w, r.dy, d.window, true, options)) return {};
  const int parts = d.window.stride.h * d.window.stride.w;
  return candidates(r, shape_of<DataPoints>(geometry_of(r.dx, r.w, r.dy, d.window), parts),
                    {false, product_stays(r.dy, d.window, options, kNumbersBytes), false,
                     wgmma_product_fits(r.dy, r.dx.shape[1], d.window, options, kStaticBytes), kFusedFirst},
                    options, mma_fused_name);
}

std::vector<Candidate> candidates_of(const NormConv2dBackwardWeights& d, const CudaOpOptions& options) {
  NormConv2dBackwardWeights r = d;
  for (TensorDesc* const tensor : {&r.x, &r.dy, &r.dw}) *tensor = resolved_channels_last(*tensor);
  if (r.dw.type != DType::f32 || !fits(r.x, r.dw, r.dy, d.window, false, options)) return {};
  return candidates(r, shape_of<WeightsPoints>(geometry_of(r.x, r.dw, r.dy, d.window), 1),
                    {true, weights_stay(r.x, r.dy, d.window, options, kNumbersBytes)}, options, mma_fused_name);
}

template <typename Desc>
std::vector<Candidate> candidates_of(const Desc&, const CudaOpOptions&) {
  return {};
}

}  // namespace

std::string mma_name(const MmaChoice& choice) {
  const std::string splits = choice.splits == 1 ? "" : " in " + std::to_string(choice.splits) + " ranges";
  return std::string(is_wgmma(choice.tile) ? "own:wgmma " : "own:mma ") + to_string(choice.tile) + splits;
}

std::string mma_fused_name(const MmaChoice& choice) { return mma_name(choice) + " fused"; }

std::vector<Candidate> mma_candidates(const OpDesc& desc, const CudaOpOptions& options) {
  return std::visit([&](const auto& d) { return candidates_of(d, options); }, desc);
}

namespace {
const CandidateSource mma_source(CandidateSource::Kind::untried,
                                 {family::mma, family::resident, family::warpgroup, family::wgmma}, mma_candidates);
}  // namespace

}  // namespace dp::kernels::cuda
