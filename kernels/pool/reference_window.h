// The mapping from output cells and window cells to input cells.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/ops.h"

namespace dp::kernels::reference {

// One axis of a window op. Window cell k of output cell o covers input cell o*stride - padding + k, if that exists.
struct WindowAxis {
  std::int64_t input, output;
  Window window;

  std::int64_t cell(std::int64_t o, int k) const { return o * window.stride - window.padding + k; }
  // The outputs whose window cell k is inside the input: [first(k), last(k)).
  std::int64_t first(int k) const {
    return std::clamp<std::int64_t>((window.padding - k + window.stride - 1) / window.stride, 0, output);
  }
  std::int64_t last(int k) const {
    const std::int64_t room = input - 1 + window.padding - k;
    return room < 0 ? 0 : std::min(output, room / window.stride + 1);
  }
};

}  // namespace dp::kernels::reference
