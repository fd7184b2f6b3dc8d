// The data set of drawn digits, rendered by several threads.
#pragma once

#include <cstdint>
#include <memory>

#include "dp/dataset.h"

namespace dp {

enum class DigitsPart : std::uint64_t { train = 0, test = 1 };

// Image `index` depends only on (seed, part, index), not on `count` or `threads` (0: one per core).
std::shared_ptr<const Dataset> draw_digits(DigitsPart part, std::int64_t count, std::uint64_t seed, int threads = 0);

}  // namespace dp
