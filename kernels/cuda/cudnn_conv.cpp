#include "kernels/cuda/cudnn_conv.h"

#include <algorithm>
#include <array>

#include "dp/error.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/libraries.h"
#include "kernels/cuda/library_kernels.h"
#include "kernels/cuda/tensor_layout.h"

namespace dp::kernels::cuda {
namespace {

using Direction = CudnnConvolution::Direction;

// What all ways to compute one convolution have in common.
struct Problem {
  const char* name;
  CudnnConvolution convolution;  // as cuDNN computes it
  std::vector<TensorDesc> tensors;
  bool bias_gradient = false;
  bool widen = false;  // weight gradients are of 16 bits, and widened to float32 afterwards
};

// Where a graph's tensors come from: the position among an op's arguments; -1: it has none.
struct Positions {
  int x, w, bias, y;
};
Positions positions_of(Direction direction, bool bias) {
  if (direction == Direction::forward) return {0, 1, bias ? 2 : -1, 3};
  if (direction == Direction::backward_data) return {2, 1, -1, 0};
  return {0, 2, -1, 1};
}

// The pointers of one run, as cuDNN wants to be told of them. Making one asks the host's allocator, so the last few are kept: a step
// comes with the same pointers as the one before.
class VariantPacks {
 public:
  using Pointers = std::array<void*, 5>;  // x, w, bias, y, workspace; null where there is none

  CudnnBackendDescriptor of(const CudnnApi& api, const Pointers& pointers) {
    for (const Pack& pack : packs_)
      if (pack.descriptor.get() != nullptr && pack.pointers == pointers) return pack.descriptor.get();
    Pack& pack = packs_[next_++ % packs_.size()];
    pack = {pointers, make(api, pointers)};
    return pack.descriptor.get();
  }

 private:
  struct Pack {
    Pointers pointers{};
    CudnnDescriptor descriptor;
  };

  static CudnnDescriptor make(const CudnnApi& api, const Pointers& pointers) {
    std::vector<std::int64_t> ids;
    std::vector<void*> data;
    for (const std::int64_t id : {kCudnnX, kCudnnW, kCudnnBias, kCudnnY})
      if (void* const pointer = pointers[static_cast<std::size_t>(id - kCudnnX)]; pointer != nullptr)
        ids.push_back(id), data.push_back(pointer);
    CudnnDescriptor pack(api, CudnnKind::variant_pack);
    pack.set<std::int64_t>(CudnnAttribute::variant_ids, std::span<const std::int64_t>(ids));
    pack.set<void*>(CudnnAttribute::variant_pointers, std::span<void* const>(data));
    pack.set(CudnnAttribute::variant_workspace, pointers.back());
    pack.finalize();
    return pack;
  }

  std::array<Pack, 4> packs_;
  std::size_t next_ = 0;
};

class CudnnConvolutionOp final : public CudaOp {
 public:
  CudnnConvolutionOp(std::shared_ptr<const Problem> problem, std::string name, bool tf32, CudnnPlan plan,
                     std::shared_ptr<Libraries> libraries)
      : problem_(std::move(problem)),
        name_(std::move(name)),
        tf32_(tf32),
        libraries_(std::move(libraries)),
        api_(*cudnn().api),
        plan_(std::move(plan)) {
    tensors_ = problem_->tensors;
    const CudnnConvolution& c = problem_->convolution;
    if (problem_->bias_gradient) bias_sums_.emplace(c.y);
    if (problem_->widen) narrow_bytes_ = static_cast<std::size_t>(c.w.shape.numel()) * size_of(c.w.type);
  }

  std::size_t workspace_bytes() const override {
    const std::size_t own = bias_sums_ ? bias_sums_->workspace_bytes() : 0;
    return std::max(with_room_to_align(plan_.workspace_bytes()) + with_room_to_align(narrow_bytes_), own);
  }
  std::string implementation() const override { return name_; }
  bool rounds_to_tf32() const override { return tf32_; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> args, void* workspace) override {
    const CudnnConvolution& c = problem_->convolution;
    const Positions at = positions_of(c.direction, c.bias);
    const auto arg = [&](int position) { return position < 0 ? nullptr : args[static_cast<std::size_t>(position)]; };
    void* const ours = aligned_workspace(workspace);
    void* const narrow = static_cast<std::byte*>(ours) + plan_.workspace_bytes();
    void* const w = problem_->widen ? aligned_workspace(narrow) : arg(at.w);
    check_alignment(c.x, arg(at.x)), check_alignment(c.y, arg(at.y));
    expect_run(libraries_->use_stream(stream));
    try {
      const auto pack = packs_.of(api_, {arg(at.x), w, arg(at.bias), arg(at.y), ours});
      expect_run(api_.execute(libraries_->cudnn_handle(), plan_.get(), pack));
    } catch (const CudnnRefusal& refusal) {
      fail(refusal.what());
    }
    if (problem_->widen) enqueue_cast(stream, w, c.w.type, arg(at.w), DType::f32, c.w.shape.numel());
    if (bias_sums_) bias_sums_->enqueue(stream, args[1], args[3], workspace);
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    cudaGetLastError();
    throw Error(ErrorCode::device, std::string("cuDNN failed in ") + problem_->name + " (" + name_ + ") on " +
                                       current_device() + ": " + why + "; DP_CUDNN_LIBRARY=none leaves cuDNN out");
  }
  void expect_run(CudnnStatus status) const {
    if (status != CudnnStatus::success) fail(describe(api_, status));
  }
  void check_alignment(const TensorDesc& tensor, const void* pointer) const {
    const auto alignment = static_cast<std::uintptr_t>(sample_alignment(tensor));
    if (reinterpret_cast<std::uintptr_t>(pointer) % alignment != 0)
      fail("a tensor does not lie on a multiple of " + std::to_string(alignment) + " bytes");
  }

  const std::shared_ptr<const Problem> problem_;
  const std::string name_;
  const bool tf32_;
  const std::shared_ptr<Libraries> libraries_;
  const CudnnApi& api_;
  const CudnnPlan plan_;
  VariantPacks packs_;
  std::optional<BiasSums> bias_sums_;
  std::size_t narrow_bytes_ = 0;
};

// None where cuDNN does not have the problem.
std::vector<Way> ways_of(const std::shared_ptr<const Problem>& problem, const CudaOpOptions& options) try {
  const CudnnTarget target{cudnn().api, options.libraries->cudnn_handle()};
  const bool is_f32 = problem->convolution.x.type == DType::f32;
  const CudnnRules rules{options.deterministic, options.tf32, options.fast_convolutions, is_f32};
  const auto graph = std::make_shared<const CudnnGraph>(target, problem->convolution);
  std::vector<Way> ways;
  for (const auto& config : configs_of(target, graph, rules, options.deterministic ? 1 : kMostCudnnWays)) {
    const bool tf32 = is_f32 && config->has(CudnnNote::tensor_core);
    const std::string name = "cudnn:" + config->name() + (tf32 ? " tf32" : "") + (problem->widen ? " widened" : "");
    ways.push_back({name, [=, libraries = options.libraries]() -> std::unique_ptr<CudaOp> {
                      try {
                        CudnnPlan plan(target, config);
                        if (plan.workspace_bytes() > kMostLibraryWorkspace) return nullptr;
                        return std::make_unique<CudnnConvolutionOp>(problem, name, tf32, std::move(plan), libraries);
                      } catch (const CudnnRefusal&) {
                        return nullptr;
                      }
                    }});
  }
  return ways;
} catch (const CudnnRefusal&) {
  return {};
}

}  // namespace

std::optional<CudnnConvolution> cudnn_convolution(const OpDesc& desc) {
  const auto last = resolved_channels_last;
  if (const auto* const d = std::get_if<Conv2dForward>(&desc))
    return CudnnConvolution{Direction::forward, last(d->x), last(d->w), last(d->y), d->window, d->bias, d->relu};
  if (const auto* const d = std::get_if<Conv2dBackwardData>(&desc))
    return CudnnConvolution{Direction::backward_data, last(d->dx), last(d->w), last(d->dy), d->window};
  if (const auto* const d = std::get_if<Conv2dBackwardWeights>(&desc))
    return CudnnConvolution{Direction::backward_weights, last(d->x), last(d->dw), last(d->dy), d->window};
  return std::nullopt;
}

std::vector<Way> cudnn_ways(const OpDesc& desc, const CudaOpOptions& options) {
  const auto convolution = cudnn_convolution(desc);
  if (!convolution || options.libraries == nullptr || options.libraries->cudnn_handle() == nullptr) return {};
  const CudnnConvolution& c = *convolution;
  Problem problem{name_of(desc), c, {}};
  if (c.direction == Direction::forward)
    problem.tensors = {c.x, c.w, c.y};
  else if (c.direction == Direction::backward_data)
    problem.tensors = {c.y, c.w, c.x};
  else
    problem.tensors = {c.x, c.y, c.w};
  if (const auto* const d = std::get_if<Conv2dBackwardWeights>(&desc)) problem.bias_gradient = d->bias;
  std::vector<Way> ways = ways_of(std::make_shared<const Problem>(problem), options);
  if (!ways.empty() || c.direction != Direction::backward_weights || c.w.type == c.x.type) return ways;
  // No engine writes float32 from 16 bits.
  const DType narrow = c.x.type;
  problem.convolution.w = {c.w.shape, narrow,
                           is_channels_last(c.w) ? channels_last(c.w.shape, narrow) : plain(c.w.shape, narrow)};
  problem.widen = true;
  return ways_of(std::make_shared<const Problem>(problem), options);
}

}  // namespace dp::kernels::cuda
