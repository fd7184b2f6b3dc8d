// Images, gradients and weights taken into the space of Winograd's products and back, vectorised over channels.
#pragma once

#include "kernels/cpu/conv/winograd_tile.h"
#include "kernels/cpu/cpu_layout.h"

namespace dp::kernels::winograd {

// The tiles of an image that cover its `rows` x `columns` results, row by row, sample by sample.
struct Tiles {
  std::int64_t samples = 0, rows = 0, columns = 0;

  std::int64_t high() const { return (rows + 3) / 4; }
  std::int64_t wide() const { return (columns + 3) / 4; }
  std::int64_t count() const { return samples * high() * wide(); }
};

// A matrix for each of the 36 positions, row-major. Between two lies a cache line, so that the same place of all of them
// does not fall into one set of the cache.
struct Matrices {
  float* data = nullptr;
  std::int64_t rows = 0, columns = 0;

  std::int64_t stride() const { return rows * columns + 16; }
  std::int64_t floats() const { return kPositions * stride(); }
  float* at(int position, std::int64_t row) const { return data + position * stride() + row * columns; }
};

// Where the channels of an activation lie: all blocks, padding included, multiples of the vector.
inline std::int64_t channels_of(const ActivationView& v) { return v.blocks * v.block; }
bool fits_lanes(std::int64_t block);

// Which tiles: rows [begin, end) of the matrices, the first row being tile `first`. A matrix's columns are the channels.
struct TileRange {
  std::int64_t first, begin, end;
};

// Tiles of x: the one of the results at (r, c) reads x from (r - padding, c - padding) on.
void take_inputs(const ActivationView& view, const float* x, const Tiles& tiles, const TileRange& range,
                 std::int64_t padding, const Matrices& to);
// The same of gradients of results: tiles do not overlap.
void take_gradients(const ActivationView& view, const float* dy, const Tiles& tiles, const TileRange& range,
                    const Matrices& to);
// y = results + bias (of every channel, padding included; may be null), then max(0, y) when relu.
void give_results(const Matrices& from, const Tiles& tiles, const TileRange& range, const float* bias, bool relu,
                  const ActivationView& view, float* y);

// Weights (O,I,3,3) in blocks of output channels side by side, as oneDNN's OIhw8i8o and OIhw16i16o.
struct WeightsView {
  std::int64_t outputs = 0, inputs = 0;  // with padding
  std::int64_t block = 1, stride_o = 0, stride_i = 0, stride_h = 0, stride_w = 0;

  std::int64_t at(std::int64_t o_block, std::int64_t i) const {
    return o_block * stride_o + i / block * stride_i + i % block * block;
  }
};
// False when the layout is another one.
bool view_weights(const DnnlDesc& md, WeightsView& view);

// Input channels [begin, end), the rows of the matrices, whose columns are the outputs; `turned` by half a turn.
void take_weights(const WeightsView& view, const float* w, bool turned, std::int64_t begin, std::int64_t end,
                  const Matrices& to);
void give_weight_gradients(const WeightsView& view, const Matrices& from, std::int64_t begin, std::int64_t end,
                           float* dw);

}  // namespace dp::kernels::winograd
