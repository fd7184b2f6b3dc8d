// The sample order of an epoch.
#pragma once

#include <cstdint>
#include <span>

namespace dp {

// Fills `order` with 0 .. size-1. `shuffle`: Fisher-Yates, keyed by (seed, epoch) only. At most 2^32-1 samples.
void fill_order(std::span<std::int64_t> order, bool shuffle, std::uint64_t seed, std::int64_t epoch);

}  // namespace dp
