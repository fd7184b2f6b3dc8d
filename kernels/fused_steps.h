// Convolutions fused with batch normalisation (the NormConv2d ops of ops.h) as sequences of their member ops. The
// sequence defines the result of the fused op for every backend, and implements it where no fused kernel is faster.
#pragma once

#include <algorithm>
#include <array>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "kernels/backend.h"

namespace dp::kernels {

// `T` is the backend's op type.
template <typename T>
class FusedSteps {
 public:
  static constexpr int kNone = -1, kBetween = -2;  // null; the intermediate tensor in the workspace

  // `args` gives each argument of `op`: an index into the fused op's arguments, kNone or kBetween.
  void add(std::unique_ptr<T> op, std::initializer_list<int> args) {
    Step step{std::move(op), {}, args.size()};
    std::ranges::copy(args, step.args.begin());
    workspace_ = std::max(workspace_, step.op->workspace_bytes());
    steps_.push_back(std::move(step));
  }
  // As add(), for the op that writes `tensor`, the intermediate tensor, to the workspace.
  void add_between(std::unique_ptr<T> op, std::initializer_list<int> args, const TensorDesc& tensor) {
    between_ = (tensor.layout.bytes + kAlignment - 1) / kAlignment * kAlignment;
    add(std::move(op), args);
  }

  std::size_t workspace_bytes() const { return between_ + workspace_; }
  // Calls run(op, args, workspace) for each op in order.
  template <typename Run>
  void run(std::span<void* const> args, void* workspace, const Run& run) const {
    void* const rest = static_cast<std::byte*>(workspace) + between_;
    for (const Step& step : steps_) {
      std::array<void*, kMaxOpArgs> own{};
      for (std::size_t i = 0; i < step.count; ++i)
        own[i] = step.args[i] == kBetween ? workspace
                 : step.args[i] == kNone  ? nullptr
                                          : args[static_cast<std::size_t>(step.args[i])];
      run(*step.op, std::span<void* const>(own.data(), step.count), rest);
    }
  }

 private:
  static constexpr std::size_t kAlignment = 256;
  struct Step {
    std::unique_ptr<T> op;
    std::array<int, kMaxOpArgs> args;
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

// `convolution` is already made and its tensors are resolved. make(descriptor) makes the other members.
template <typename T, typename Make>
FusedSteps<T> fused_steps(const NormConv2dForward& d, std::unique_ptr<T> convolution, const Make& make) {
  using Steps = FusedSteps<T>;
  Steps steps;
  const TensorDesc x = convolution->tensors()[0], y = convolution->tensors()[2];
  if (d.norm) steps.add_between(make(BatchNormForward{x, true, false}), {0, 1, 2, 3, Steps::kNone, Steps::kBetween}, x);
  steps.add(std::move(convolution), {d.norm ? Steps::kBetween : 0, 4, Steps::kNone, 5});
  if (d.moments) steps.add(make(BatchNormMoments{y, d.eps}), {5, 6, d.eps ? 7 : Steps::kNone});
  return steps;
}
template <typename T, typename Make>
FusedSteps<T> fused_steps(const NormConv2dBackwardData& d, std::unique_ptr<T> convolution, const Make& make) {
  using Steps = FusedSteps<T>;
  Steps steps;
  const TensorDesc x = convolution->tensors()[2];
  if (d.renormalize)
    steps.add_between(make(BatchNormForward{x, true, false}), {3, 5, 6, 7, Steps::kNone, Steps::kBetween}, x);
  const int y = !d.relu ? Steps::kNone : d.renormalize ? Steps::kBetween : 4, dy2 = d.add ? 2 : Steps::kNone;
  const bool masks = d.relu || d.add;
  steps.add(std::move(convolution), {0, 1, 11});
  steps.add(make(BatchNormBackwardSums{x, d.relu}), {11, dy2, 3, y, 5, 8, 9, 10, masks ? 11 : Steps::kNone});
  return steps;
}
template <typename T, typename Make>
FusedSteps<T> fused_steps(const NormConv2dBackwardWeights&, std::unique_ptr<T> convolution, const Make& make) {
  using Steps = FusedSteps<T>;
  Steps steps;
  const TensorDesc x = convolution->tensors()[0];
  steps.add_between(make(BatchNormForward{x, true, false}), {0, 1, 2, 3, Steps::kNone, Steps::kBetween}, x);
  steps.add(std::move(convolution), {Steps::kBetween, 4, 5, Steps::kNone});
  return steps;
}

}  // namespace dp::kernels
