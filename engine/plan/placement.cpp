#include "engine/plan/placement.h"

#include <algorithm>
#include <numeric>

namespace dp::engine {

std::size_t place(std::vector<Lifetime>& buffers) {
  constexpr std::size_t kAlign = 64;
  std::vector<std::size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return buffers[a].bytes > buffers[b].bytes; });
  std::size_t total = 0;
  std::vector<const Lifetime*> placed;  // sorted by offset
  for (const std::size_t index : order) {
    Lifetime& buffer = buffers[index];
    const std::size_t bytes = (buffer.bytes + kAlign - 1) / kAlign * kAlign;
    std::size_t offset = 0;
    for (const Lifetime* other : placed) {
      if (other->last < buffer.first || buffer.last < other->first) continue;
      if (offset + bytes <= other->offset) break;
      offset = std::max(offset, (other->offset + other->bytes + kAlign - 1) / kAlign * kAlign);
    }
    buffer.offset = offset;
    total = std::max(total, offset + bytes);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), &buffer,
                                   [](const Lifetime* a, const Lifetime* b) { return a->offset < b->offset; }),
                  &buffer);
  }
  return total;
}

}  // namespace dp::engine
