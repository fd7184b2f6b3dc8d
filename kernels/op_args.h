// Runs ops with arguments by name.
#pragma once

#include <algorithm>

#include "kernels/device/backend.h"

namespace dp::kernels {

// Number of arguments of the op that has the most.
inline constexpr int kMaxOpArgs = []<typename... D>(const std::variant<D...>*) {
  return static_cast<int>(std::max({kArgCount<D>...}));
}(static_cast<const OpDesc*>(nullptr));

// Enqueues an op that was made from a D.
template <typename D>
void run_op(Op& op, Stream& stream, const Pointers<D>& args, void* workspace = nullptr) {
  op.run(stream, in_order<D, void*>(args), workspace);
}

}  // namespace dp::kernels
