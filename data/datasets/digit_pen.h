// Draws one handwritten-looking digit from a stream of random numbers.
#pragma once

#include <cstdint>
#include <span>

#include "dp/random.h"

namespace dp {

inline constexpr int kDigitSide = 28;  // pixels, width and height

// The digit that draw_digit() draws with the same numbers, 0 .. 9.
std::int32_t drawn_digit(Random& random);

// Fills `pixels` (28*28, 0 = paper, 255 = ink).
void draw_digit(Random& random, std::span<std::uint8_t> pixels);

}  // namespace dp
