// Starts the kernel of a forward or a data gradient on tensor cores. Only for the .cu files that instantiate it.
#pragma once

#include "kernels/cuda/conv_mma_product.h"
#include "kernels/cuda/conv_mma_resident_product.h"

namespace dp::kernels::cuda {

template <typename Low, bool data>
void enqueue_mma(cudaStream_t stream, MmaTileKind tile, const MmaProduct& product, int parts, int multiprocessors,
                 const void* image, const void* weights, const void* bias, void* out) {
  switch (tile) {
    case MmaTileKind::large:
      return enqueue_mma_tiles<Low, LargeMmaTile, data>(stream, product, parts, image, weights, bias, out);
    case MmaTileKind::tall:
      return enqueue_mma_tiles<Low, TallMmaTile, data>(stream, product, parts, image, weights, bias, out);
    case MmaTileKind::middle:
      return enqueue_mma_tiles<Low, MiddleMmaTile, data>(stream, product, parts, image, weights, bias, out);
    case MmaTileKind::small:
      return enqueue_mma_tiles<Low, SmallMmaTile, data>(stream, product, parts, image, weights, bias, out);
    case MmaTileKind::resident:
      return enqueue_resident<Low, data>(stream, product, multiprocessors, image, weights, bias, out);
  }
}

}  // namespace dp::kernels::cuda
