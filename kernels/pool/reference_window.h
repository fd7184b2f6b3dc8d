// The mapping from output cells and window cells to input cells.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/ops.h"

namespace dp::kernels::reference {

// One axis of a window op. Window cell k of output cell o covers input cell o*stride - padding + k*dilation, if that
// exists.
struct WindowAxis {
  std::int64_t input, output;
  int kernel = 1, stride = 1, padding = 0, dilation = 1;

  static WindowAxis rows(std::int64_t input, std::int64_t output, const Window& window) {
    return {input, output, window.kernel.h, window.stride.h, window.padding.h, window.dilation.h};
  }
  static WindowAxis cols(std::int64_t input, std::int64_t output, const Window& window) {
    return {input, output, window.kernel.w, window.stride.w, window.padding.w, window.dilation.w};
  }

  std::int64_t cell(std::int64_t o, int k) const { return o * stride - padding + k * dilation; }
  // The outputs whose window cell k is inside the input: [first(k), last(k)).
  std::int64_t first(int k) const {
    return std::clamp<std::int64_t>((padding - k * dilation + stride - 1) / stride, 0, output);
  }
  std::int64_t last(int k) const {
    const std::int64_t room = input - 1 + padding - k * dilation;
    return room < 0 ? 0 : std::min(output, room / stride + 1);
  }
};

}  // namespace dp::kernels::reference
