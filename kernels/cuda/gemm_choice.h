// How a product is cut into blocks. Depends on its shape alone, so that sums have one order on every device.
#pragma once

#include <cstdint>

namespace dp::kernels::cuda {

enum class TileKind { wide, tall, small };  // 128x128, 128x64, 32x32

struct GemmChoice {
  TileKind tile = TileKind::small;
  int splits = 1;  // ranges of the sum, added up by a second kernel
};

struct GemmShape {
  std::int64_t rows = 0, cols = 0, depth = 0;  // rows and depth of the largest part
  std::int64_t parts = 1, results = 0;         // results of all parts
};

GemmChoice choose(const GemmShape& shape);
const char* to_string(TileKind tile);

}  // namespace dp::kernels::cuda
