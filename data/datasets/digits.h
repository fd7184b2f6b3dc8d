// The data set of drawn digits.
#pragma once

#include <cstdint>
#include <memory>

#include "dp/dataset.h"

namespace dp {

enum class DigitsPart : std::uint64_t { train = 0, test = 1 };

// Image `index` depends only on (seed, part, index). It is drawn when it is first read, by the thread that reads it.
std::shared_ptr<const Dataset> draw_digits(DigitsPart part, std::int64_t count, std::uint64_t seed);

}  // namespace dp
