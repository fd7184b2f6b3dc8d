// Draws one handwritten-looking digit from a stream of random numbers.
#pragma once

#include <cstdint>
#include <span>

#include "dp/random.h"

namespace dp {

inline constexpr int kDigitSide = 28;  // pixels, width and height

// Fills `pixels` (28*28, 0 = paper, 255 = ink) and returns the digit drawn, 0 .. 9.
std::int32_t draw_digit(Random& random, std::span<std::uint8_t> pixels);

}  // namespace dp
