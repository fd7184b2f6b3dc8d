// The planes of a pool (one sample, one block of channels each), and max-pooling of one, vectorised over the channels.
#pragma once

#include <cstdint>

#include "kernels/device/cpu/cpu_layout.h"
#include "kernels/ops.h"

namespace dp::kernels {

inline constexpr std::uint8_t kNoGradient = 255;

// Both sides of a pool, with the same blocks of channels. Error(usage) if their layouts have different ones.
struct PoolViews {
  ActivationView large, pooled;
};
PoolViews pool_views(const char* op, const TensorDesc& large, const TensorDesc& pooled);

struct PoolPlanes {  // the large side (h, w) and the pooled side of one plane; both have `block` channels
  std::int64_t h, w, pooled_h, pooled_w, block;
  Window window;

  bool tiles() const { return window.halves(); }  // needs no bounds checks
};

// y = max over the window, then max(0, y) if relu. mask is as in MaxPool2dForward, or null. NaN counts as the maximum.
// T is float or BFloat16.
template <typename T>
void max_pool_plane(const PoolPlanes& planes, bool relu, const T* x, T* y, std::uint8_t* mask);
// Writes every element of dx once.
template <typename T>
void max_pool_plane_backward(const PoolPlanes& planes, float scale, const T* dy, const std::uint8_t* mask, T* dx);

}  // namespace dp::kernels
