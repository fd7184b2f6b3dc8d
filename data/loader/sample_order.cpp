#include "data/loader/sample_order.h"

#include <numeric>
#include <utility>

#include "dp/random.h"

namespace dp {

void fill_order(std::span<std::int64_t> order, bool shuffle, std::uint64_t seed, std::int64_t epoch) {
  std::iota(order.begin(), order.end(), 0);
  if (!shuffle) return;
  Random random(seed, RandomUse::shuffle, static_cast<std::uint64_t>(epoch));
  for (std::size_t left = order.size(); left > 1; --left)
    std::swap(order[left - 1], order[random.below(static_cast<std::uint32_t>(left))]);
}

}  // namespace dp
