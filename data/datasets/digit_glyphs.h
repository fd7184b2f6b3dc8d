// Pen paths of the ten handwritten digits, several glyphs per digit.
#pragma once

#include <cstdint>
#include <span>

namespace dp {

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

}  // namespace dp
