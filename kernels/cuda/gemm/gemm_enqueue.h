// Definition of Gemm::enqueue. Include it only in the .cu file that instantiates Gemm for a product.
#pragma once

#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/gemm_tile.h"

namespace dp::kernels::cuda {

template <typename Points, typename Beside>
template <typename Tile, typename T>
void Gemm<Points, Beside>::enqueue_tiles(cudaStream_t stream, const char* kernel, const T* a, const T* b,
                                         const float* bias, void* out, float* columns, float* workspace,
                                         const Beside& beside) const {
  Ending ending = ending_;
  ending.quads_a = ending.quads_a && on_16_bytes(a), ending.quads_b = ending.quads_b && on_16_bytes(b);
  const dim3 grid(blocks_for(shape_.rows, Tile::kRows), blocks_for(shape_.cols, Tile::kCols),
                  static_cast<unsigned>(shape_.parts * ending.splits));
  launch({kernel, grid, dim3(Tile::kThreads), stream}, gemm_kernel<Points, Tile, T, Beside>, a, b, bias, out, columns,
         ending.splits == 1 ? nullptr : workspace, static_cast<unsigned*>(counters_.get()), geometry_, ending, beside);
}

template <typename Points, typename Beside>
template <typename T>
void Gemm<Points, Beside>::enqueue_in(cudaStream_t stream, const char* kernel, const T* a, const T* b,
                                      const float* bias, void* out, float* columns, float* workspace,
                                      const Beside& beside) const {
  switch (choice_.tile) {
    case TileKind::wide: return enqueue_tiles<WideTile>(stream, kernel, a, b, bias, out, columns, workspace, beside);
    case TileKind::tall: return enqueue_tiles<TallTile>(stream, kernel, a, b, bias, out, columns, workspace, beside);
    case TileKind::square:
      return enqueue_tiles<SquareTile>(stream, kernel, a, b, bias, out, columns, workspace, beside);
    case TileKind::narrow:
      return enqueue_tiles<NarrowTile>(stream, kernel, a, b, bias, out, columns, workspace, beside);
    case TileKind::small: return enqueue_tiles<SmallTile>(stream, kernel, a, b, bias, out, columns, workspace, beside);
  }
}

template <typename Points, typename Beside>
void Gemm<Points, Beside>::enqueue(cudaStream_t stream, const char* kernel, const void* a, const void* b,
                                   const float* bias, void* out, float* columns, float* workspace,
                                   const Beside& beside) const {
  if (shape_.results == 0) return;
  const auto enqueue = [&]<typename T>() {
    enqueue_in(stream, kernel, static_cast<const T*>(a), static_cast<const T*>(b), bias, out, columns, workspace,
               beside);
  };
  if constexpr (std::is_same_v<Beside, Nothing>)
    in_type(type_, enqueue);
  else
    enqueue.template operator()<float>();
}

}  // namespace dp::kernels::cuda
