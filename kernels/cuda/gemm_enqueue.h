// Gemm::enqueue, for the one file that instantiates it for each kind of product.
#pragma once

#include <cstdint>

#include "kernels/cuda/gemm.h"
#include "kernels/cuda/gemm_tile.h"

namespace dp::kernels::cuda {

inline bool on_16_bytes(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

template <typename Points>
template <typename Tile, typename T>
void Gemm<Points>::enqueue_tiles(cudaStream_t stream, const char* kernel, const T* a, const T* b, const float* bias,
                                 void* out, float* workspace) const {
  const bool whole = ending_.splits == 1;
  Ending ending = ending_;
  ending.quads_a = ending.quads_a && on_16_bytes(a), ending.quads_b = ending.quads_b && on_16_bytes(b);
  const dim3 grid(blocks_for(shape_.rows, Tile::kRows), blocks_for(shape_.cols, Tile::kCols),
                  static_cast<unsigned>(shape_.parts * ending.splits));
  launch({kernel, grid, dim3(Tile::kThreads), stream}, gemm_kernel<Points, Tile, T>, a, b, bias,
         whole ? out : static_cast<void*>(workspace), geometry_, ending);
  if (!whole) enqueue_end<Points>(stream, workspace, bias, static_cast<ResultOf<Points, T>*>(out), geometry_, ending);
}

template <typename Points>
template <typename T>
void Gemm<Points>::enqueue_in(cudaStream_t stream, const char* kernel, const T* a, const T* b, const float* bias,
                              void* out, float* workspace) const {
  switch (choice_.tile) {
    case TileKind::wide: return enqueue_tiles<WideTile>(stream, kernel, a, b, bias, out, workspace);
    case TileKind::tall: return enqueue_tiles<TallTile>(stream, kernel, a, b, bias, out, workspace);
    case TileKind::square: return enqueue_tiles<SquareTile>(stream, kernel, a, b, bias, out, workspace);
    case TileKind::narrow: return enqueue_tiles<NarrowTile>(stream, kernel, a, b, bias, out, workspace);
    case TileKind::small: return enqueue_tiles<SmallTile>(stream, kernel, a, b, bias, out, workspace);
  }
}

template <typename Points>
void Gemm<Points>::enqueue(cudaStream_t stream, const char* kernel, const void* a, const void* b, const float* bias,
                           void* out, float* workspace) const {
  if (shape_.results == 0) return;
  in_type(type_, [&]<typename T>() {
    enqueue_in(stream, kernel, static_cast<const T*>(a), static_cast<const T*>(b), bias, out, workspace);
  });
}

}  // namespace dp::kernels::cuda
