// How a product is divided into blocks. The choice depends only on the shape, so the
// summation order is the same on every device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace dp::kernels::cuda {

enum class TileKind { wide, tall, square, narrow, small };  // 128x128, 128x64, 64x64, 128x32, 32x32
inline constexpr TileKind kTileKinds[] = {TileKind::wide, TileKind::tall, TileKind::square, TileKind::narrow,
                                          TileKind::small};

struct GemmChoice {
  TileKind tile = TileKind::small;
  int splits = 1;  // ranges of k; the last blocks add their partial sums
};

struct GemmShape {
  std::int64_t rows = 0, cols = 0;      // rows of the largest part
  std::int64_t depth = 0;               // average over the parts
  std::int64_t parts = 1, results = 0;  // results of all parts
};

GemmChoice choose(const GemmShape& shape);
// Other choices that may be faster on a device. At most `most`, in order of estimated time.
std::vector<GemmChoice> alternatives(const GemmShape& shape, std::size_t most);
const char* to_string(TileKind tile);
std::string gemm_name(const GemmChoice& choice);  // "own:gemm 128x64 in 4 ranges"

}  // namespace dp::kernels::cuda
