#include "kernels/pool/cpu_plane.h"

#include <algorithm>
#include <string>

#include "dp/error.h"
#include "kernels/device/cpu/lanes.h"

namespace dp::kernels {
namespace {

// Windows in one direction. `begin`: the first row or column of a window, which may be in the padding.
struct PoolSide {
  std::int64_t kernel, stride, padding, dilation;

  std::int64_t begin(std::int64_t window) const { return window * stride - padding; }
  // The cells of the window that are inside the image: first .. end - 1.
  std::int64_t first(std::int64_t begin) const { return begin >= 0 ? 0 : (dilation - 1 - begin) / dilation; }
  std::int64_t end(std::int64_t begin, std::int64_t size) const {
    return std::min(kernel, (size - begin + dilation - 1) / dilation);
  }
  // The windows whose span contains row or column `at`: first_over .. last_over. If they are dilated, `at` may be
  // between two of their cells.
  std::int64_t first_over(std::int64_t at) const {
    return std::max<std::int64_t>(0, (at + padding - dilation * (kernel - 1) - 1 + stride) / stride);
  }
  std::int64_t last_over(std::int64_t at, std::int64_t windows) const {
    return std::min(windows - 1, (at + padding) / stride);
  }
};

PoolSide side_of(const PoolPlanes& p, int HW::*side) {
  return {p.window.kernel.*side, p.window.stride.*side, p.window.padding.*side, p.window.dilation.*side};
}

template <typename V>
struct Best {
  typename V::Floats value;
  typename V::Ints cell;

  void offer(typename V::Floats v, std::int32_t at) {
    // Wins if it is greater, or the first NaN. A NaN maximum stays.
    const typename V::Ints wins = ~(v <= value) & (value == value);
    value = wins ? v : value;
    cell = wins ? at - typename V::Ints{} : cell;
  }
  template <typename T>
  void finish(bool relu, T* y, std::uint8_t* mask) {
    if (relu) {
      const typename V::Ints positive = value > 0.f;
      if (mask != nullptr) V::store_bytes(mask, cell | (~positive & kNoGradient));
      V::store(y, value <= 0.f ? typename V::Floats{} : value);  // NaN stays NaN
    } else {
      if (mask != nullptr) V::store_bytes(mask, cell);
      V::store(y, value);
    }
  }
};

template <typename V, typename T>
void forward_tiles(const PoolPlanes& p, bool relu, const T* x, T* y, std::uint8_t* mask) {
  const std::int64_t block = p.block, row = p.w * block;
  for (std::int64_t oh = 0; oh < p.pooled_h; ++oh)
    for (std::int64_t ow = 0; ow < p.pooled_w; ++ow) {
      const T* corner = x + oh * 2 * row + ow * 2 * block;
      const std::int64_t at = (oh * p.pooled_w + ow) * block;
      for (std::int64_t c = 0; c < block; c += V::count) {
        Best<V> best{V::load(corner + c), {}};
        best.offer(V::load(corner + c + block), 1);
        best.offer(V::load(corner + c + row), 2);
        best.offer(V::load(corner + c + row + block), 3);
        best.finish(relu, y + at + c, mask == nullptr ? nullptr : mask + at + c);
      }
    }
}

template <typename V, typename T>
void forward_any(const PoolPlanes& p, bool relu, const T* x, T* y, std::uint8_t* mask) {
  const std::int64_t block = p.block, kernel = p.window.kernel.w;
  const PoolSide rows = side_of(p, &HW::h), cols = side_of(p, &HW::w);
  for (std::int64_t oh = 0; oh < p.pooled_h; ++oh)
    for (std::int64_t ow = 0; ow < p.pooled_w; ++ow) {
      const std::int64_t top = rows.begin(oh), left = cols.begin(ow);
      const std::int64_t first_row = rows.first(top), end_row = rows.end(top, p.h);
      const std::int64_t first_col = cols.first(left), end_col = cols.end(left, p.w);
      const std::int64_t at = (oh * p.pooled_w + ow) * block;
      for (std::int64_t c = 0; c < block; c += V::count) {
        const auto cell = [&](std::int64_t r, std::int64_t k) {
          return V::load(x + ((top + r * rows.dilation) * p.w + left + k * cols.dilation) * block + c);
        };
        Best<V> best{cell(first_row, first_col), {}};
        best.cell += static_cast<std::int32_t>(first_row * kernel + first_col);
        for (std::int64_t r = first_row; r < end_row; ++r)
          for (std::int64_t k = first_col; k < end_col; ++k)
            best.offer(cell(r, k), static_cast<std::int32_t>(r * kernel + k));
        best.finish(relu, y + at + c, mask == nullptr ? nullptr : mask + at + c);
      }
    }
}

template <typename V, typename T>
void backward_tiles(const PoolPlanes& p, float scale, const T* dy, const std::uint8_t* mask, T* dx) {
  const std::int64_t block = p.block, row = p.w * block, used = p.pooled_w * 2 * block;
  for (std::int64_t oh = 0; oh < p.pooled_h; ++oh) {
    T* top = dx + oh * 2 * row;
    for (std::int64_t ow = 0; ow < p.pooled_w; ++ow) {
      const std::int64_t at = (oh * p.pooled_w + ow) * block;
      T* corner = top + ow * 2 * block;
      for (std::int64_t c = 0; c < block; c += V::count) {
        const typename V::Floats gradient = V::load(dy + at + c) * scale, zero{};
        const typename V::Ints cell = V::load_bytes(mask + at + c);
        V::store(corner + c, cell == 0 ? gradient : zero);
        V::store(corner + c + block, cell == 1 ? gradient : zero);
        V::store(corner + c + row, cell == 2 ? gradient : zero);
        V::store(corner + c + row + block, cell == 3 ? gradient : zero);
      }
    }
    std::fill(top + used, top + row, T{});  // the last column of an odd width
    std::fill(top + row + used, top + 2 * row, T{});
  }
  std::fill(dx + p.pooled_h * 2 * row, dx + p.h * row, T{});  // the last row of an odd height
}

template <typename V, typename T>
void backward_any(const PoolPlanes& p, float scale, const T* dy, const std::uint8_t* mask, T* dx) {
  const std::int64_t block = p.block, kernel = p.window.kernel.w;
  const PoolSide rows = side_of(p, &HW::h), cols = side_of(p, &HW::w);
  const bool dilated = !(p.window.dilation == 1);
  for (std::int64_t h = 0; h < p.h; ++h)
    for (std::int64_t w = 0; w < p.w; ++w)
      for (std::int64_t c = 0; c < block; c += V::count) {
        typename V::Floats sum{};
        for (std::int64_t oh = rows.first_over(h); oh <= rows.last_over(h, p.pooled_h); ++oh)
          for (std::int64_t ow = cols.first_over(w); ow <= cols.last_over(w, p.pooled_w); ++ow) {
            std::int64_t row = h - rows.begin(oh), col = w - cols.begin(ow);
            if (dilated) {
              if (row % rows.dilation != 0 || col % cols.dilation != 0) continue;
              row /= rows.dilation, col /= cols.dilation;
            }
            const std::int64_t at = (oh * p.pooled_w + ow) * block + c, cell = row * kernel + col;
            sum += V::load_bytes(mask + at) == static_cast<std::int32_t>(cell) ? V::load(dy + at) * scale
                                                                               : typename V::Floats{};
          }
        V::store(dx + (h * p.w + w) * block + c, sum);
      }
}

}  // namespace

PoolViews pool_views(const char* op, const TensorDesc& large, const TensorDesc& pooled) {
  const PoolViews views{view_beside(large, pooled), view_beside(pooled, large)};
  const ActivationView &x = views.large, &y = views.pooled;
  if (x.c != y.c || x.block != y.block || x.blocks != y.blocks)
    throw Error(ErrorCode::usage, std::string(op) + " requires the same kind of layout for input and output, not " +
                                      large.layout.name + " and " + pooled.layout.name);
  return views;
}

template <typename T>
void max_pool_plane(const PoolPlanes& p, bool relu, const T* x, T* y, std::uint8_t* mask) {
  with_lanes(p.block, [&](auto lanes) {
    using V = decltype(lanes);
    p.tiles() ? forward_tiles<V>(p, relu, x, y, mask) : forward_any<V>(p, relu, x, y, mask);
  });
}

template <typename T>
void max_pool_plane_backward(const PoolPlanes& p, float scale, const T* dy, const std::uint8_t* mask, T* dx) {
  with_lanes(p.block, [&](auto lanes) {
    using V = decltype(lanes);
    p.tiles() ? backward_tiles<V>(p, scale, dy, mask, dx) : backward_any<V>(p, scale, dy, mask, dx);
  });
}

template void max_pool_plane(const PoolPlanes&, bool, const float*, float*, std::uint8_t*);
template void max_pool_plane(const PoolPlanes&, bool, const BFloat16*, BFloat16*, std::uint8_t*);
template void max_pool_plane_backward(const PoolPlanes&, float, const float*, const std::uint8_t*, float*);
template void max_pool_plane_backward(const PoolPlanes&, float, const BFloat16*, const std::uint8_t*, BFloat16*);

}  // namespace dp::kernels
