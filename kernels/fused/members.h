// A fused op as a sequence of its member ops. The sequence defines the result of the fused op for every backend, and
// implements it where no fused kernel is faster. A descriptor writes its own (add_members in op.h).
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/op.h"

namespace dp::kernels {

// `T` is the backend's op type.
template <typename T>
class Members {
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
      std::array<void*, kMostArgs> own{};
      for (std::size_t i = 0; i < step.count; ++i)
        own[i] = step.args[i].index == kBetween.index ? workspace : arg_at(args, step.args[i]);
      run(*step.op, std::span<void* const>(own.data(), step.count), rest);
    }
  }

  // Calls visit(op) for each op.
  template <typename Visit>
  void each(const Visit& visit) const {
    for (const Step& step : steps_) visit(*step.op);
  }

  std::vector<TensorDesc> tensors;  // of the fused op; resolved
  std::string name;                 // implementations of the members that matter, separated by commas

 private:
  static constexpr std::size_t kAlignment = 256, kMostArgs = 16;
  struct Step {
    std::unique_ptr<T> op;
    std::array<Position, kMostArgs> args;
    std::size_t count;
  };
  std::vector<Step> steps_;
  std::size_t between_ = 0, workspace_ = 0;
};

template <typename Desc>
concept Fused = requires {
  Desc::kFused;
};

// The members of a fused op. make(descriptor) returns a std::unique_ptr<T>.
template <typename T, Fused Desc, typename Make>
Members<T> members_of(const Desc& desc, const Make& make) {
  Members<T> members;
  desc.add_members(members, make);
  return members;
}

}  // namespace dp::kernels
