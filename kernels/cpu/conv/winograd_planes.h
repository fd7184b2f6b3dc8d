// Winograd transforms of images, gradients and weights, and the inverse transforms, vectorised over channels.
#pragma once

#include "kernels/cpu/conv/winograd_tile.h"
#include "kernels/cpu/cpu_layout.h"

namespace dp::kernels::winograd {

// The tiles that cover the `rows` x `columns` results of each image, in row-major order, sample by sample.
struct Tiles {
  std::int64_t samples = 0, rows = 0, columns = 0;

  std::int64_t high() const { return (rows + 3) / 4; }
  std::int64_t wide() const { return (columns + 3) / 4; }
  std::int64_t count() const { return samples * high() * wide(); }
};

// One row-major matrix for each of the 36 positions. A cache line separates two matrices, so that equal offsets in all
// matrices do not map to one cache set.
struct Matrices {
  float* data = nullptr;
  std::int64_t rows = 0, columns = 0;

  std::int64_t stride() const { return rows * columns + 16; }
  std::int64_t floats() const { return kPositions * stride(); }
  float* at(int position, std::int64_t row) const { return data + position * stride() + row * columns; }
};

// The channels of an activation: all blocks, padding included.
inline std::int64_t channels_of(const ActivationView& v) { return v.blocks * v.block; }
bool fits_lanes(std::int64_t block);

// Rows [begin, end) of the matrices; row 0 is tile `first`. The columns are the channels.
struct TileRange {
  std::int64_t first, begin, end;
};

// Transforms tiles of x. The tile of the results from (r, c) on reads x from (r - padding, c - padding) on.
void take_inputs(const ActivationView& view, const float* x, const Tiles& tiles, const TileRange& range,
                 std::int64_t padding, const Matrices& to);
// Transforms tiles of dy, which do not overlap.
void take_gradients(const ActivationView& view, const float* dy, const Tiles& tiles, const TileRange& range,
                    const Matrices& to);
// Inverse transform: y = results + bias, then max(0, y) if relu. `bias` includes the padding channels; it may be null.
void give_results(const Matrices& from, const Tiles& tiles, const TileRange& range, const float* bias, bool relu,
                  const ActivationView& view, float* y);

// Weights (O,I,3,3) in blocks with contiguous output channels, as in oneDNN's OIhw8i8o and OIhw16i16o.
struct WeightsView {
  std::int64_t outputs = 0, inputs = 0;  // with padding
  std::int64_t block = 1, stride_o = 0, stride_i = 0, stride_h = 0, stride_w = 0;

  std::int64_t at(std::int64_t o_block, std::int64_t i) const {
    return o_block * stride_o + i / block * stride_i + i % block * block;
  }
};
// False for any other layout.
bool view_weights(const DnnlDesc& md, WeightsView& view);

// Transforms the weights of input channels [begin, end), which are the rows of the matrices; columns are the output
// channels. `turned`: rotated by 180 degrees.
void take_weights(const WeightsView& view, const float* w, bool turned, std::int64_t begin, std::int64_t end,
                  const Matrices& to);
void give_weight_gradients(const WeightsView& view, const Matrices& from, std::int64_t begin, std::int64_t end,
                           float* dw);

}  // namespace dp::kernels::winograd
