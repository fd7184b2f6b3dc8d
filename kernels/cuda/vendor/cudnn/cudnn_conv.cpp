#include "kernels/cuda/vendor/cudnn/cudnn_conv.h"

#include <algorithm>

#include "kernels/cuda/runtime/tensor_layout.h"
#include "kernels/cuda/vendor/cudnn/cudnn_norm_conv.h"
#include "kernels/cuda/vendor/library_kernels.h"

namespace dp::kernels::cuda {
namespace {

// Shared by all candidates for one convolution.
struct Problem {
  CudnnConvolution convolution;  // as cuDNN computes it
  std::vector<TensorDesc> tensors;
  bool bias_gradient = false;
  bool widen = false;  // weight gradients have 16 bits and are converted to float32 afterwards
};

// The index of each graph tensor among the op's arguments; -1: not an argument.
struct Positions {
  int x, w, bias, y;
};
Positions positions_of(CudnnDirection direction, bool bias) {
  if (direction == CudnnDirection::forward) return {0, 1, bias ? 2 : -1, 3};
  if (direction == CudnnDirection::backward_data) return {2, 1, -1, 0};
  return {0, 2, -1, 1};
}

class CudnnConvolutionOp final : public CudaOp {
 public:
  CudnnConvolutionOp(std::shared_ptr<const Problem> problem, CudnnRun run, bool tf32)
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
  void enqueue(cudaStream_t stream, std::span<void* const> args, void* workspace) override {
    const CudnnConvolution& c = problem_->convolution;
    const Positions at = positions_of(c.direction, c.bias);
    const auto arg = [&](int position) { return position < 0 ? nullptr : args[static_cast<std::size_t>(position)]; };
    void* const ours = aligned_workspace(workspace);
    void* const narrow = static_cast<std::byte*>(ours) + run_.workspace_bytes();
    void* const w = problem_->widen ? aligned_workspace(narrow) : arg(at.w);
    run_.check_alignment(c.x, arg(at.x)), run_.check_alignment(c.y, arg(at.y));
    run_.enqueue(stream,
                 {{{kCudnnX, arg(at.x)}, {kCudnnW, w}, {kCudnnBias, arg(at.bias)}, {kCudnnY, arg(at.y)}}, ours});
    if (problem_->widen) enqueue_cast(stream, w, c.w.type, arg(at.w), DType::f32, c.w.shape.numel());
    if (bias_sums_) bias_sums_->enqueue(stream, args[1], args[3], workspace);
  }

 private:
  const std::shared_ptr<const Problem> problem_;
  CudnnRun run_;
  const bool tf32_;
  std::optional<BiasSums> bias_sums_;
  std::size_t narrow_bytes_ = 0;
};

std::vector<Candidate> candidates_of(const char* name, const Problem& problem, const CudaOpOptions& options) {
  const bool is_f32 = problem.convolution.x.type == DType::f32;
  return candidates_of_graph(
      {name, problem.widen ? " widened" : "", is_f32},
      [&](const CudnnTarget& target) { return convolution_graph(target, problem.convolution); },
      [shared = std::make_shared<const Problem>(problem)](CudnnRun run, bool tf32) {
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
  Problem problem{c, {}};
  if (c.direction == CudnnDirection::forward)
    problem.tensors = {c.x, c.w, c.y};
  else if (c.direction == CudnnDirection::backward_data)
    problem.tensors = {c.y, c.w, c.x};
  else
    problem.tensors = {c.x, c.y, c.w};
  if (const auto* const d = std::get_if<Conv2dBackwardWeights>(&desc)) problem.bias_gradient = d->bias;
  std::vector<Candidate> candidates = candidates_of(name_of(desc), problem, options);
  if (!candidates.empty() || c.direction != CudnnDirection::backward_weights || c.w.type == c.x.type) return candidates;
  // No engine writes float32 weight gradients from 16-bit inputs.
  problem.convolution.w = narrow_weights(c);
  problem.widen = true;
  return candidates_of(name_of(desc), problem, options);
}

}  // namespace dp::kernels::cuda
