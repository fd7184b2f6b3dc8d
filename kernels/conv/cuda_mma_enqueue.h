// Launches the kernel of a forward or a data gradient on tensor cores. Only for the .cu files that instantiate it.
#pragma once

#include "kernels/conv/cuda_mma_resident.h"
#include "kernels/conv/cuda_mma_tile.h"
#include "kernels/conv/cuda_warpgroup.h"

namespace dp::kernels::cuda {

// Calls run.operator()<Tile>() with the tile type of `tile`. The kind warpgroup has its own launch.
template <typename Run>
auto with_tile(MmaTileKind tile, const Run& run) {
  switch (tile) {
    case MmaTileKind::large: return run.template operator()<LargeMmaTile>();
    case MmaTileKind::tall: return run.template operator()<TallMmaTile>();
    case MmaTileKind::middle: return run.template operator()<MiddleMmaTile>();
    case MmaTileKind::small: return run.template operator()<SmallMmaTile>();
    case MmaTileKind::wgmma_wide: return run.template operator()<WgmmaTile<128>>();
    case MmaTileKind::wgmma_narrow: return run.template operator()<WgmmaTile<64>>();
    case MmaTileKind::resident:
    case MmaTileKind::warpgroup: break;
  }
  return run.template operator()<ResidentTile>();
}

template <typename Low, bool data>
void enqueue_mma(cudaStream_t stream, MmaTileKind tile, const MmaProduct& product, int multiprocessors,
                 const void* image, const void* weights, const void* bias, void* out) {
  if (tile == MmaTileKind::warpgroup)
    return enqueue_warpgroup<Low, data>(stream, product, multiprocessors, image, weights, bias, out);
  with_tile(tile, [&]<typename Tile>() {
    if constexpr (std::is_same_v<Tile, ResidentTile>)
      enqueue_resident<Low, data>(stream, product, multiprocessors, image, weights, bias, out);
    else if constexpr (kIsWgmmaTile<Tile>)
      enqueue_wgmma<Low, Tile, data>(stream, product, multiprocessors, image, weights, bias, out);
    else
      enqueue_mma_tiles<Low, Tile, data>(stream, product, image, weights, bias, out);
  });
}

}  // namespace dp::kernels::cuda
