#include "engine/base/split.h"

#include <algorithm>

#include "dp/error.h"

namespace dp {

std::vector<std::int64_t> split_batch(std::int64_t batch, int replicas, Split split) {
  if (batch < 1) throw Error(ErrorCode::usage, "a batch needs at least one sample");
  if (replicas < 1) throw Error(ErrorCode::usage, "at least one replica is required");
  std::vector<std::int64_t> sizes;
  for (int rank = 0; rank < replicas; ++rank) {
    const std::int64_t size = engine::shard_of(batch, rank, replicas, split).size();
    if (size == 0) break;
    sizes.push_back(size);
  }
  return sizes;
}

namespace engine {

kernels::Range shard_of(std::int64_t rows, int index, int parts, Split split) {
  if (split == Split::chunk) {
    const std::int64_t size = (rows + parts - 1) / parts;
    return {std::min(rows, index * size), std::min(rows, (index + 1) * size)};
  }
  const std::int64_t size = rows / parts, larger = rows % parts;
  const auto begin = [&](std::int64_t i) { return i * size + std::min(i, larger); };
  return {begin(index), begin(index + 1)};
}

}  // namespace engine
}  // namespace dp
