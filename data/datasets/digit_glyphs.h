// How people write the ten digits: the pen's path, several ways each.
#pragma once

#include <cstdint>
#include <span>

namespace dp {

enum class Pen : std::uint8_t {
  lift,    // the first point of a stroke
  curve,   // the pen passes smoothly
  corner,  // the pen passes and turns
};

// x to the right, y downwards, both 0 .. 1 in the digit's box.
struct PenPoint {
  float x, y;
  Pen pen = Pen::curve;
};

using Glyph = std::span<const PenPoint>;

inline constexpr std::size_t kMaxPenPoints = 16;  // of the longest glyph

// The ways to write `digit`, 0 .. 9.
std::span<const Glyph> glyphs_of(int digit);

}  // namespace dp
