// In which order an epoch visits the samples.
#pragma once

#include <cstdint>
#include <span>

namespace dp {

// Fills `order` with 0 .. size-1, shuffled (Fisher-Yates) by the stream of (seed, epoch) alone. Up to 2^32-1 samples.
void fill_order(std::span<std::int64_t> order, bool shuffle, std::uint64_t seed, std::int64_t epoch);

}  // namespace dp
