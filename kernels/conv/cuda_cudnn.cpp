#include "kernels/conv/cuda_cudnn.h"

#include <algorithm>
#include <iterator>

#include "kernels/conv/cuda_cudnn_norm.h"
#include "kernels/device/cuda/cuda_op.h"
#include "kernels/device/cuda/libraries/library_kernels.h"
#include "kernels/op_args.h"

namespace dp::kernels::cuda {

std::vector<Candidate> candidates_of_graph(
    const CudnnCandidateOp& op, const std::function<std::shared_ptr<const CudnnGraph>(const CudnnTarget&)>& graph,
    const CudnnOpMaker& make, const CudaOpOptions& options) try {
  const CudnnTarget target{cudnn().api, options.libraries->cudnn_handle()};
  const CudnnRules rules{options.deterministic, options.tf32, options.fast_convolutions, op.is_f32};
  std::vector<Candidate> candidates;
  for (const auto& config : configs_of(target, graph(target), rules, options.deterministic ? 1 : kMaxCudnnCandidates)) {
    const bool tf32 = op.is_f32 && config->has(CudnnNote::tensor_core);
    const std::string candidate = "cudnn:" + config->name() + (tf32 ? " tf32" : "") + op.ending;
    candidates.push_back(
        {family::cudnn, candidate, [=, name = op.name, libraries = options.libraries]() -> std::unique_ptr<CudaOp> {
           try {
             CudnnPlan plan(target, config);
             if (plan.workspace_bytes() > kMostLibraryWorkspace) return nullptr;
             return make(CudnnRun(name, candidate, std::move(plan), libraries), tf32);
           } catch (const CudnnRefusal&) {
             return nullptr;
           }
         }});
  }
  return candidates;
} catch (const CudnnRefusal&) {
  return {};
}

TensorDesc narrow_weights(const CudnnConvolution& c) { return {c.w.shape, c.x.type, with_type(c.w, c.x.type)}; }

std::shared_ptr<const CudnnGraph> convolution_graph(const CudnnTarget& target, const CudnnConvolution& c) {
  CudnnGraphBuilder graph(target);
  const auto& x = graph.tensor(tensor_of(kCudnnX, c.x, /*batched=*/true));
  const auto& w = graph.tensor(tensor_of(kCudnnW, c.w, /*batched=*/false));
  const CudnnTensor y = tensor_of(kCudnnY, c.y, /*batched=*/true);
  const CudnnDescriptor* result = &(c.bias || c.relu ? graph.between(y) : graph.tensor(y));
  graph.convolve(c.direction, c.window, x, w, *result);
  if (c.bias) {
    const auto& bias = graph.tensor(per_channel(kCudnnBias, c.w.shape[0]));
    const auto& sum = c.relu ? graph.between(y) : graph.tensor(y);
    graph.add(*result, bias, sum);
    result = &sum;
  }
  if (c.relu) graph.relu(*result, graph.tensor(y));
  return graph.finish();
}

namespace {

// Shared by all candidates for one convolution.
struct ConvProblem {
  CudnnConvolution convolution;  // as cuDNN computes it
  std::vector<TensorDesc> tensors;
  bool bias_gradient = false;
  bool widen = false;  // weight gradients have 16 bits and are converted to float32 afterwards
};

// The graph's tensors among the op's arguments.
struct Tensors {
  void *x, *w, *bias, *y;
};
Tensors tensors_of(CudnnDirection direction, bool bias, std::span<void* const> pointers) {
  if (direction == CudnnDirection::forward) {
    const auto args = args_of<Conv2dForward>(pointers);
    return {args.x, args.w, bias ? args.b : nullptr, args.y};
  }
  if (direction == CudnnDirection::backward_data) {
    const auto args = args_of<Conv2dBackwardData>(pointers);
    return {args.dx, args.w, nullptr, args.dy};
  }
  const auto args = args_of<Conv2dBackwardWeights>(pointers);
  return {args.x, args.dw, nullptr, args.dy};
}

class CudnnConvolutionOp final : public CudaOp {
 public:
  CudnnConvolutionOp(std::shared_ptr<const ConvProblem> problem, CudnnRun run, bool tf32)
      : problem_(std::move(problem)), run_(std::move(run)), tf32_(tf32) {
    tensors_ = problem_->tensors;
    const CudnnConvolution& c = problem_->convolution;
    if (problem_->bias_gradient) bias_sums_.emplace(c.y);
    if (problem_->widen) narrow_bytes_ = static_cast<std::size_t>(c.w.shape.numel()) * size_of(c.w.type);
  }

  std::size_t workspace_bytes() const override {
    const std::size_t own = bias_sums_ ? bias_sums_->workspace_bytes() : 0;
    return std::max(with_room_to_align(run_.workspace_bytes()) + with_room_to_align(narrow_bytes_), own);
  }
  std::string implementation() const override { return run_.candidate(); }
  bool uses_libraries() const override { return true; }
  bool rounds_to_tf32() const override { return tf32_; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    const CudnnConvolution& c = problem_->convolution;
    const Tensors at = tensors_of(c.direction, c.bias, pointers);
    void* const ours = aligned_workspace(workspace);
    void* const narrow = static_cast<std::byte*>(ours) + run_.workspace_bytes();
    void* const w = problem_->widen ? aligned_workspace(narrow) : at.w;
    run_.check_alignment(c.x, at.x), run_.check_alignment(c.y, at.y);
    run_.enqueue(stream, {{{kCudnnX, at.x}, {kCudnnW, w}, {kCudnnBias, at.bias}, {kCudnnY, at.y}}, ours});
    if (problem_->widen) enqueue_cast(stream, w, c.w.type, at.w, DType::f32, c.w.shape.numel());
    if (bias_sums_) bias_sums_->enqueue(stream, at.y, args_of<Conv2dBackwardWeights>(pointers).db, workspace);
  }

 private:
  const std::shared_ptr<const ConvProblem> problem_;
  CudnnRun run_;
  const bool tf32_;
  std::optional<BiasSums> bias_sums_;
  std::size_t narrow_bytes_ = 0;
};

std::vector<Candidate> candidates_of(const char* name, const ConvProblem& problem, const CudaOpOptions& options) {
  const bool is_f32 = problem.convolution.x.type == DType::f32;
  return candidates_of_graph(
      {name, problem.widen ? " widened" : "", is_f32},
      [&](const CudnnTarget& target) { return convolution_graph(target, problem.convolution); },
      [shared = std::make_shared<const ConvProblem>(problem)](CudnnRun run, bool tf32) {
        return std::make_unique<CudnnConvolutionOp>(shared, std::move(run), tf32);
      },
      options);
}

}  // namespace

std::optional<CudnnConvolution> cudnn_convolution(const OpDesc& desc) {
  const auto last = resolved_channels_last;
  if (const auto* const d = std::get_if<Conv2dForward>(&desc))
    return CudnnConvolution{CudnnDirection::forward, last(d->x), last(d->w), last(d->y), d->window, d->bias, d->relu};
  if (const auto* const d = std::get_if<Conv2dBackwardData>(&desc))
    return CudnnConvolution{CudnnDirection::backward_data, last(d->dx), last(d->w), last(d->dy), d->window};
  if (const auto* const d = std::get_if<Conv2dBackwardWeights>(&desc))
    return CudnnConvolution{CudnnDirection::backward_weights, last(d->x), last(d->dw), last(d->dy), d->window};
  return std::nullopt;
}

std::vector<Candidate> cudnn_candidates(const OpDesc& desc, const CudaOpOptions& options) {
  const auto convolution = cudnn_convolution(desc);
  const auto fused = cudnn_norm_convolution(desc);
  if (!convolution && !fused) return {};
  if (options.libraries == nullptr || options.libraries->cudnn_handle() == nullptr) return {};
  if (fused) return cudnn_norm_candidates(name_of(desc), *fused, options);
  const CudnnConvolution& c = *convolution;
  ConvProblem problem{c, {}};
  if (c.direction == CudnnDirection::forward)
    problem.tensors = {c.x, c.w, c.y};
  else if (c.direction == CudnnDirection::backward_data)
    problem.tensors = {c.y, c.w, c.x};
  else
    problem.tensors = {c.x, c.y, c.w};
  if (const auto* const d = std::get_if<Conv2dBackwardWeights>(&desc)) problem.bias_gradient = d->bias;
  std::vector<Candidate> candidates = candidates_of(name_of(desc), problem, options);
  if (c.direction != CudnnDirection::backward_weights || c.w.type == c.x.type) return candidates;
  // Few engines write float32 weight gradients from 16-bit inputs. The only one of cuDNN 9.19 on an H100 takes up to 20
  // times as long as those that write 16 bits.
  if (options.deterministic && !candidates.empty()) return candidates;  // not tried: one is enough
  problem.convolution.w = narrow_weights(c);
  problem.widen = true;
  std::ranges::move(candidates_of(name_of(desc), problem, options), std::back_inserter(candidates));
  return candidates;
}

namespace {
const CandidateSource cudnn_source(CandidateSource::Kind::library, {family::cudnn}, cudnn_candidates);
}  // namespace

}  // namespace dp::kernels::cuda
