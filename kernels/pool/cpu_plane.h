// Max-pooling of one plane (one sample, one block of channels), vectorised over the channels.
#pragma once

#include <cstdint>

#include "kernels/device/cpu/cpu_layout.h"
#include "kernels/ops.h"

namespace dp::kernels {

inline constexpr std::uint8_t kNoGradient = 255;

struct PoolPlanes {  // the large side (h, w) and the pooled side of one plane; both have `block` channels
  std::int64_t h, w, pooled_h, pooled_w, block;
  Window window;

  // Windows of 2 x 2 that do not overlap: the common case, without bounds checks.
  bool tiles() const { return window.kernel == 2 && window.stride == 2 && window.padding == 0; }
};

// y = max over the window, then max(0, y) if relu. mask is as in MaxPool2dForward, or null. NaN counts as the maximum.
// T is float or BFloat16.
template <typename T>
void max_pool_plane(const PoolPlanes& planes, bool relu, const T* x, T* y, std::uint8_t* mask);
// Writes every element of dx once.
template <typename T>
void max_pool_plane_backward(const PoolPlanes& planes, float scale, const T* dy, const std::uint8_t* mask, T* dx);

}  // namespace dp::kernels
