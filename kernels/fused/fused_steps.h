// Convolutions fused with batch normalisation (the NormConv2d ops of ops.h) as sequences of their member ops. The
// sequence defines the result of the fused op for every backend, and implements it where no fused kernel is faster.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "kernels/op_args.h"

namespace dp::kernels {

// `T` is the backend's op type.
template <typename T>
class FusedSteps {
 public:
  static constexpr Position kNone{-1}, kBetween{-2};  // null; the intermediate tensor in the workspace

  // `op` is made from a D. `args` gives each of its arguments: the position among the fused op's arguments, kNone or
  // kBetween.
  template <typename D>
  void add(std::unique_ptr<T> op, const typename D::template Args<Position>& args) {
    Step step{std::move(op), {}, kArgCount<D>};
    std::ranges::copy(in_order<D, Position>(args), step.args.begin());
    workspace_ = std::max(workspace_, step.op->workspace_bytes());
    steps_.push_back(std::move(step));
  }
  // As add(), for the op that writes `tensor`, the intermediate tensor, to the workspace.
  template <typename D>
  void add_between(std::unique_ptr<T> op, const typename D::template Args<Position>& args, const TensorDesc& tensor) {
    between_ = (tensor.layout.bytes + kAlignment - 1) / kAlignment * kAlignment;
    add<D>(std::move(op), args);
  }

  std::size_t workspace_bytes() const { return between_ + workspace_; }
  // Calls run(op, args, workspace) for each op in order.
  template <typename Run>
  void run(std::span<void* const> args, void* workspace, const Run& run) const {
    void* const rest = static_cast<std::byte*>(workspace) + between_;
    for (const Step& step : steps_) {
      std::array<void*, kMaxOpArgs> own{};
      for (std::size_t i = 0; i < step.count; ++i)
        own[i] = step.args[i].index == kBetween.index ? workspace : arg_at(args, step.args[i]);
      run(*step.op, std::span<void* const>(own.data(), step.count), rest);
    }
  }

 private:
  static constexpr std::size_t kAlignment = 256;
  struct Step {
    std::unique_ptr<T> op;
    std::array<Position, kMaxOpArgs> args;
    std::size_t count;
  };
  std::vector<Step> steps_;
  std::size_t between_ = 0, workspace_ = 0;
};

// The convolution in a fused op.
inline Conv2dForward convolution_of(const NormConv2dForward& d) { return {d.x, d.w, d.y, d.window, false, false}; }
inline Conv2dBackwardData convolution_of(const NormConv2dBackwardData& d) { return {d.dy, d.w, d.dx, d.window}; }
inline Conv2dBackwardWeights convolution_of(const NormConv2dBackwardWeights& d) {
  return {d.x, d.dy, d.dw, d.window, false};
}
template <typename Desc>
concept FusedConvolution = requires(const Desc& desc) {
  convolution_of(desc);
};
inline std::optional<OpDesc> inner_convolution(const OpDesc& desc) {
  return std::visit(
      [](const auto& d) -> std::optional<OpDesc> {
        if constexpr (FusedConvolution<std::decay_t<decltype(d)>>) return convolution_of(d);
        return {};
      },
      desc);
}

// Adds the normalisation of x with ReLU. Its result is the intermediate tensor. `at`: positions of the fused op.
template <typename T, typename Make, typename At>
void add_normalized(FusedSteps<T>& steps, const Make& make, const TensorDesc& x, const At& at) {
  steps.template add_between<BatchNormForward>(make(BatchNormForward{x, true, false}),
                                               {.x = at.x,
                                                .stats = at.stats,
                                                .weight = at.weight,
                                                .bias = at.bias,
                                                .addend = FusedSteps<T>::kNone,
                                                .y = FusedSteps<T>::kBetween},
                                               x);
}

// `convolution` is already made and its tensors are resolved. make(descriptor) makes the other members.
template <typename T, typename Make>
FusedSteps<T> fused_steps(const NormConv2dForward& d, std::unique_ptr<T> convolution, const Make& make) {
  using Steps = FusedSteps<T>;
  Steps steps;
  const TensorDesc x = convolution->tensors()[0], y = convolution->tensors()[2];
  constexpr auto at = positions<NormConv2dForward>();
  if (d.norm) add_normalized(steps, make, x, at);
  steps.template add<Conv2dForward>(std::move(convolution),
                                    {.x = d.norm ? Steps::kBetween : at.x, .w = at.w, .b = Steps::kNone, .y = at.y});
  if (d.moments)
    steps.template add<BatchNormMoments>(
        make(BatchNormMoments{y, d.eps}),
        {.x = at.y, .moments = at.moments, .stats = d.eps ? at.y_stats : Steps::kNone});
  return steps;
}
template <typename T, typename Make>
FusedSteps<T> fused_steps(const NormConv2dBackwardData& d, std::unique_ptr<T> convolution, const Make& make) {
  using Steps = FusedSteps<T>;
  Steps steps;
  const TensorDesc x = convolution->tensors()[2];
  constexpr auto at = positions<NormConv2dBackwardData>();
  if (d.renormalize) add_normalized(steps, make, x, at);
  const bool masks = d.relu || d.add;
  steps.template add<Conv2dBackwardData>(std::move(convolution), {.dy = at.dy, .w = at.w, .dx = at.dz});
  steps.template add<BatchNormBackwardSums>(make(BatchNormBackwardSums{x, d.relu}),
                                            {.dy = at.dz,
                                             .dy2 = d.add ? at.dy2 : Steps::kNone,
                                             .x = at.x,
                                             .y = !d.relu         ? Steps::kNone
                                                  : d.renormalize ? Steps::kBetween
                                                                  : at.y,
                                             .stats = at.stats,
                                             .sums = at.sums,
                                             .dweight = at.dweight,
                                             .dbias = at.dbias,
                                             .dz = masks ? at.dz : Steps::kNone});
  return steps;
}
template <typename T, typename Make>
FusedSteps<T> fused_steps(const NormConv2dBackwardWeights&, std::unique_ptr<T> convolution, const Make& make) {
  using Steps = FusedSteps<T>;
  Steps steps;
  const TensorDesc x = convolution->tensors()[0];
  constexpr auto at = positions<NormConv2dBackwardWeights>();
  add_normalized(steps, make, x, at);
  steps.template add<Conv2dBackwardWeights>(std::move(convolution),
                                            {.x = Steps::kBetween, .dy = at.dy, .dw = at.dw, .db = Steps::kNone});
  return steps;
}

}  // namespace dp::kernels
