// wgmma reads an operand as successive rows of shared memory, so a tap must have the same offset for every cell, also
// at the edge of an image. Therefore the wgmma kernels put zeros between the lines and between the images.
#pragma once

#include "kernels/cuda/tensor_core/conv_mma_resident.h"

namespace dp::kernels::cuda {

// Images of `width` x `height` cells. A cell of zeros follows each line, and a line of zeros follows each image.
struct SpacedImages {
  Count pitch, lines;      // width + 1, height + 1
  int width, height, all;  // all: number of cells of all images, including zeros

  // The images that `windows` describes.
  static SpacedImages of(const Windows& windows) {
    const Count pitch(windows.width + 1), lines(windows.height + 1);
    const int images = windows.cells / (windows.width * windows.height);
    return {pitch, lines, windows.width, windows.height, images * pitch * lines};
  }
  // Index of the cell in the tensor; -1 for zeros and outside all images.
  __device__ int cell(int at) const {
    if (at < 0 || at >= all) return -1;
    const int line = at / pitch, image = line / lines;
    const int h = line - image * lines, w = at - line * pitch;
    return h < height && w < width ? (image * height + h) * width + w : -1;
  }
};

// Largest offset of a tap of a 3x3 window, in cells.
__host__ __device__ inline int spaced_reach(int width) { return width + 2; }

// Bytes after which the swizzle pattern repeats.
inline constexpr int kWgmmaAlignment = 1024;
// Returns the first address from `shared` on that is a multiple of kWgmmaAlignment.
__device__ inline uint4* wgmma_aligned(uint4* shared) {
  return shared + (kWgmmaAlignment - ptx::shared_address(shared) % kWgmmaAlignment) % kWgmmaAlignment / 16;
}

}  // namespace dp::kernels::cuda
