// Launches the kernel of a forward or a data gradient on tensor cores. Only for the .cu files that instantiate it.
#pragma once

#include "kernels/cuda/tensor_core/conv_mma_product.h"
#include "kernels/cuda/tensor_core/conv_mma_resident_product.h"
#include "kernels/cuda/tensor_core/conv_warpgroup_product.h"

namespace dp::kernels::cuda {

template <typename Low, bool data>
void enqueue_mma(cudaStream_t stream, MmaTileKind tile, const MmaProduct& product, int multiprocessors,
                 const void* image, const void* weights, const void* bias, void* out) {
  if (tile == MmaTileKind::warpgroup)
    return enqueue_warpgroup<Low, data>(stream, product, multiprocessors, image, weights, bias, out);
  with_tile(tile, [&]<typename Tile>() {
    if constexpr (std::is_same_v<Tile, ResidentTile>)
      enqueue_resident<Low, data>(stream, product, multiprocessors, image, weights, bias, out);
    else
      enqueue_mma_tiles<Low, Tile, data>(stream, product, image, weights, bias, out);
  });
}

}  // namespace dp::kernels::cuda
