// Arguments of ops by name. A descriptor's Args (ops.h) lists them; Op::run takes them in that order.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <utility>

#include "kernels/device/backend.h"

namespace dp::kernels {

template <typename D>
using Pointers = typename D::template Args<void*>;

template <typename D>
inline constexpr std::size_t kArgCount = sizeof(typename D::template Args<char>);

// Number of arguments of the op that has the most.
inline constexpr int kMaxOpArgs = []<typename... D>(const std::variant<D...>*) {
  return static_cast<int>(std::max({kArgCount<D>...}));
}(static_cast<const OpDesc*>(nullptr));

template <typename D, typename P>
constexpr std::array<P, kArgCount<D>> in_order(const typename D::template Args<P>& args) {
  return std::bit_cast<std::array<P, kArgCount<D>>>(args);
}

// The pointers of Op::run by name; null where `args` is shorter.
template <typename D>
Pointers<D> args_of(std::span<void* const> args) {
  std::array<void*, kArgCount<D>> all{};
  std::copy_n(args.begin(), std::min(args.size(), all.size()), all.begin());
  return std::bit_cast<Pointers<D>>(all);
}

struct Position {  // of an argument
  int index = -1;  // -1: not an argument
};

template <typename D>
constexpr typename D::template Args<Position> positions() {
  return []<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
    return typename D::template Args<Position>{Position{static_cast<int>(kIndex)}...};
  }
  (std::make_index_sequence<kArgCount<D>>());
}
inline void* arg_at(std::span<void* const> args, Position position) {
  return position.index < 0 ? nullptr : args[static_cast<std::size_t>(position.index)];
}

// Enqueues an op that was made from a D.
template <typename D>
void run_op(Op& op, Stream& stream, const Pointers<D>& args, void* workspace = nullptr) {
  op.run(stream, in_order<D, void*>(args), workspace);
}

}  // namespace dp::kernels
