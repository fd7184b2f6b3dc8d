#include "kernels/comm/communicator.h"

#include <algorithm>
#include <numeric>

namespace dp::kernels {

Range slice_of(std::int64_t count, int rank, int size) {
  const std::int64_t blocks = (count + kSliceBlock - 1) / kSliceBlock;
  const auto bound = [&](std::int64_t r) {
    const std::int64_t block = blocks / size * r + std::min<std::int64_t>(blocks % size, r);
    return std::min(count, block * kSliceBlock);
  };
  return {bound(rank), bound(rank + 1)};
}

std::size_t bytes_before(std::span<const std::size_t> bytes, int rank) {
  return std::accumulate(bytes.begin(), bytes.begin() + rank, std::size_t{0});
}

}  // namespace dp::kernels
