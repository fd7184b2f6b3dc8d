// Windows of an image with few channels, in shared memory. A patch is the window of one cell of y, an element of it is
// numbered (kernel row, kernel col, channel). Lines are spaced: each image has its lines of padding, each line its
// columns of padding, all zeros. So an element is at the sum of two offsets: of its cell, and of its number.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/gemm/gemm_geometry.h"

namespace dp::kernels::cuda {

struct ThinPatches {
  Geometry geometry;
  Count lines;  // spaced, of one image
  Count pitch;  // elements of a spaced line

  ThinPatches() = default;
  explicit ThinPatches(const Geometry& g)
      : geometry(g),
        lines((g.out_height - 1) * g.stride + g.kernel_height),
        pitch(((g.out_width - 1) * g.stride + g.kernel_width) * g.channels) {}

  int depth() const { return geometry.kernel_height * geometry.kernel_width * geometry.channels; }
  int cells() const { return geometry.batch * geometry.out_height * geometry.out_width; }

  // Elements of shared memory, at most, for the patches of `count` successive cells.
  std::int64_t most_elements(int count) const {
    const std::int64_t between = geometry.kernel_height - geometry.stride;  // more lines from one image to the next
    const std::int64_t of_y = (count + geometry.out_width.value - 2) / geometry.out_width.value + 1;
    const std::int64_t next = of_y < 2 ? 0 : (of_y - 2) / geometry.out_height.value + 1;
    return ((of_y - 1) * geometry.stride + geometry.kernel_height + next * (between > 0 ? between : 0)) * pitch.value;
  }

  // The first spaced line of the patch of cell m.
  __device__ int first_line(int m) const {
    const int line = m / geometry.out_width, image = line / geometry.out_height;
    return image * lines + (line - image * geometry.out_height) * geometry.stride;
  }
  // Offset of cell m's patch in shared memory that begins with spaced line `first`.
  __device__ int of_cell(int m, int first) const {
    return (first_line(m) - first) * pitch + m % geometry.out_width * geometry.stride * geometry.channels;
  }
  __device__ int of_element(int k) const {
    const int tap = k / geometry.channels, row = tap / geometry.kernel_width;
    return row * pitch + (tap - row * geometry.kernel_width) * geometry.channels + k % geometry.channels;
  }

  // Copies the spaced lines of the patches of cells [begin, end) to shared memory. A barrier must follow.
  template <int threads>
  __device__ __forceinline__ void copy(std::uint16_t* shared, const std::uint16_t* x, int begin, int end) const {
    const int first = first_line(begin);
    const int all = (first_line(end - 1) - first + geometry.kernel_height) * pitch;
#pragma unroll 8
    for (int at = static_cast<int>(threadIdx.x); at < all; at += threads) {
      const int line = at / pitch, place = at - line * pitch, col = place / geometry.channels;
      const int image = (first + line) / lines, h = first + line - image * lines - geometry.padding;
      const int w = col - geometry.padding;
      const bool inside = static_cast<unsigned>(h) < static_cast<unsigned>(geometry.height.value) &&
                          static_cast<unsigned>(w) < static_cast<unsigned>(geometry.width.value);
      shared[at] = inside ? x[geometry.x.of_cell(image, h, w) + (place - col * geometry.channels) * geometry.x.channel]
                          : std::uint16_t{0};
    }
  }
};
// Passed to kernels byte by byte, so there must be no padding: its bytes would be indeterminate.
static_assert(std::has_unique_object_representations_v<ThinPatches>);

// A pair of 16-bit values as an operand of mma.
__device__ __forceinline__ unsigned pair_of(std::uint16_t low, std::uint16_t high) {
  return low | static_cast<unsigned>(high) << 16;
}

// Whether a block of the forward has enough shared memory.
bool thin_forward_fits(const Geometry& geometry, std::size_t shared_memory);

}  // namespace dp::kernels::cuda
