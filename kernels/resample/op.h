// Enlarging and shrinking images, zeros around them, and cropping.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/op.h"

namespace dp::kernels {

// How the cells of an output row or column are computed from those of the input, as PyTorch's interpolate and pad do.
struct Resampling {
  enum class Mode : std::int32_t {
    nearest,   // one cell of the input
    bilinear,  // of two cells in each direction
    shifted    // the cell `shift` before it; 0 outside of the input
  } mode = Mode::nearest;
  bool align_corners = false;  // bilinear: the centres of the corner cells of input and output are at the same places
  double scale = 0;            // output cells per input cell; 0: the quotient of the sizes
  HW shift = 0;
};

// The cells `first` and first + 1 of the input, and their shares in an output cell. A cell with the share 0 is not read
// and may be outside of the input.
struct CellReads {
  std::int32_t first;
  double share, next_share;
};
struct CellRange {  // both included; empty if last < first
  std::int32_t first, last;
};

// One direction of a resampling.
struct ResampleSide {
  double step = 1;  // input cells per output cell
  std::int32_t input = 1, output = 1, shift = 0;
  Resampling::Mode mode = Resampling::Mode::nearest;
  std::int32_t aligned = 0;  // 1: align_corners
  std::int32_t unused = 0;   // kernels' arguments have no padding

  constexpr CellReads reads(std::int32_t at) const {
    if (mode == Resampling::Mode::shifted) {
      const std::int32_t cell = at - shift;
      return {cell, cell >= 0 && cell < input ? 1.0 : 0.0, 0};
    }
    if (mode == Resampling::Mode::nearest) {  // in float32, as PyTorch does for all types
      const auto cell = static_cast<std::int32_t>(static_cast<float>(at) * static_cast<float>(step));
      return {cell < input ? cell : input - 1, 1, 0};
    }
    const double place = aligned != 0 ? step * at : step * (at + 0.5) - 0.5;
    if (place <= 0) return {0, 1, 0};
    const auto cell = static_cast<std::int32_t>(place);
    if (cell >= input - 1) return {input - 1, 1, 0};
    return {cell, 1 - (place - cell), place - cell};
  }
  // The share of input cell `cell` in output cell `at`.
  constexpr double share(std::int32_t at, std::int32_t cell) const {
    const CellReads read = reads(at);
    return read.first == cell ? read.share : read.first + 1 == cell ? read.next_share : 0;
  }
  // Contains all output cells that read an input cell, and some beside them.
  constexpr CellRange readers(std::int32_t cell) const {
    const std::int32_t end = output - 1;
    if (mode == Resampling::Mode::shifted) {
      const std::int32_t at = cell + shift;
      return {at < 0 ? 0 : at, at < end ? at : end};
    }
    if (step <= 0) return {0, end};
    const bool nearest = mode == Resampling::Mode::nearest;
    const double half = nearest || aligned != 0 ? 0 : 0.5;
    const double from = (nearest ? cell : cell - 1 + half) / step - half - 1,
                 to = (cell + 1 + half) / step - half + 1;  // more by one for rounding errors
    return {cell == 0 || from < 0 ? 0 : static_cast<std::int32_t>(from),
            cell == input - 1 || to > end ? end : static_cast<std::int32_t>(to)};
  }
};

// x and y: shapes of the input and the output.
inline ResampleSide resample_side(const Resampling& how, const Shape& x, const Shape& y, int axis, int HW::*side) {
  const auto input = static_cast<double>(x[axis]), output = static_cast<double>(y[axis]);
  double step = how.scale > 0 ? 1 / how.scale : input / output;
  const bool aligned = how.mode == Resampling::Mode::bilinear && how.align_corners;
  if (aligned) step = output > 1 ? (input - 1) / (output - 1) : 0;
  return {
      step,           static_cast<std::int32_t>(x[axis]), static_cast<std::int32_t>(y[axis]), how.shift.*side, how.mode,
      aligned ? 1 : 0};
}

// x and y are the input and the output, or their gradients.
inline void check_resample(const OpCheck& op, const TensorDesc& x, const TensorDesc& y, const Resampling& how) {
  op.one_type({&x, &y});
  op.rank({&x, &y}, 4);
  op.require(x.shape[0] == y.shape[0] && x.shape[1] == y.shape[1], "batch and channels of input and output differ");
  for (const int axis : {2, 3})
    op.require(x.shape[axis] >= 1 && y.shape[axis] >= 1 && x.shape[axis] < (1 << 24) && y.shape[axis] < (1 << 24),
               "the sizes of the images must be from 1 to 2^24 - 1");
  for (const int axis : {2, 3})
    op.require(how.scale == 0 ||
                   static_cast<double>(y.shape[axis]) == std::floor(static_cast<double>(x.shape[axis]) * how.scale),
               "the output is not the input times the scale");
}

struct ResampleForward {
  static constexpr const char* kName = "resample_forward";
  DP_ARGS(x, y);
  TensorDesc x, y;
  Resampling how;

  void check(const OpCheck& op) const { check_resample(op, x, y, how); }
};
DP_ON_EVERY_BACKEND(ResampleForward);

// Each element of dx is the sum of those of dy that read it, in their order, times their shares.
struct ResampleBackward {
  static constexpr const char* kName = "resample_backward";
  DP_ARGS(dy, dx);
  TensorDesc dy, dx;
  Resampling how;

  void check(const OpCheck& op) const { check_resample(op, dx, dy, how); }
};
DP_ON_EVERY_BACKEND(ResampleBackward);

}  // namespace dp::kernels
