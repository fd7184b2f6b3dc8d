// The data set "digits": drawn handwritten digits.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "dp/dataset.h"
#include "dp/random.h"

namespace dp {

// Pen paths of the ten handwritten digits, several glyphs per digit.

enum class Pen : std::uint8_t {
  lift,    // the first point of a stroke
  curve,   // a smooth point
  corner,  // a sharp turn
};

// x points right, y points down. Both are 0 .. 1 in the digit's box.
struct PenPoint {
  float x, y;
  Pen pen = Pen::curve;
};

using Glyph = std::span<const PenPoint>;

inline constexpr std::size_t kMaxPenPoints = 16;  // upper bound of a glyph's size

// The glyphs of `digit`, 0 .. 9.
std::span<const Glyph> glyphs_of(int digit);

// Draws one handwritten-looking digit from a stream of random numbers.

inline constexpr int kDigitSide = 28;  // pixels, width and height

// The digit that draw_digit() draws with the same numbers, 0 .. 9.
std::int32_t drawn_digit(Random& random);

// Fills `pixels` (28*28, 0 = paper, 255 = ink).
void draw_digit(Random& random, std::span<std::uint8_t> pixels);

// The data set of drawn digits.

enum class DigitsPart : std::uint64_t { train = 0, test = 1 };

// Image `index` depends only on (seed, part, index). It is drawn when it is first read, by the thread that reads it.
std::shared_ptr<const Dataset> draw_digits(DigitsPart part, std::int64_t count, std::uint64_t seed);

}  // namespace dp
