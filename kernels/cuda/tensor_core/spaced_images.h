// Images are copied to shared memory with zeros between them. An operand of a product of warpgroups is a run of rows,
// so a tap must be at the same distance from every cell, also at the edge of an image.
#pragma once

#include "kernels/cuda/tensor_core/conv_mma_resident.h"

namespace dp::kernels::cuda {

// Images of `width` x `height` cells in which a cell of zeros follows each line, and a line of zeros each image. So
// the tap of a cell is at a fixed distance, and is zero outside the image.
struct SpacedImages {
  Count pitch, lines;      // width + 1, height + 1
  int width, height, all;  // all: cells of all images, with the zeros

  // For images of the size of the windows' image.
  static SpacedImages of(const Windows& windows) {
    const Count pitch(windows.width + 1), lines(windows.height + 1);
    const int images = windows.cells / (windows.width * windows.height);
    return {pitch, lines, windows.width, windows.height, images * pitch * lines};
  }
  // Number of the cell without the zeros; -1 for a zero, and outside all images.
  __device__ int cell(int at) const {
    if (at < 0 || at >= all) return -1;
    const int line = at / pitch, image = line / lines;
    const int h = line - image * lines, w = at - line * pitch;
    return h < height && w < width ? (image * height + h) * width + w : -1;
  }
};

// Distance of the farthest tap of a 3x3 window.
__host__ __device__ inline int spaced_reach(int width) { return width + 2; }

}  // namespace dp::kernels::cuda
