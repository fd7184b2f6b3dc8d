// Winograd's F(4x4, 3x3) for one tile and one vector of channels. For an input tile X of 6 x 6, a kernel W of 3 x 3 and
// an output tile Y of 4 x 4: Y = A^T [(G W G^T) * (B^T X B)] A, where * is elementwise. The gradients use the
// transposed matrices.
#pragma once

#include "kernels/device/cpu/cpu_layout.h"

namespace dp::kernels::winograd {

inline constexpr int kOut = 4, kIn = 6, kPositions = kIn * kIn;

// Each struct applies one matrix along one axis. `F` is a vector of floats.
struct Input {  // B^T
  template <typename F>
  static void apply(const F (&d)[6], F (&t)[6]) {
    const F even = d[4] - 4.f * d[2], odd = d[3] - 4.f * d[1], high = d[4] - d[2], side = 2.f * (d[3] - d[1]);
    t[0] = 4.f * d[0] - 5.f * d[2] + d[4];
    t[1] = even + odd;
    t[2] = even - odd;
    t[3] = high + side;
    t[4] = high - side;
    t[5] = 4.f * d[1] - 5.f * d[3] + d[5];
  }
};
struct Output {  // A^T
  template <typename F>
  static void apply(const F (&m)[6], F (&y)[4]) {
    const F sum = m[1] + m[2], difference = m[1] - m[2], far_sum = m[3] + m[4], far_difference = m[3] - m[4];
    y[0] = m[0] + sum + far_sum;
    y[1] = difference + 2.f * far_difference;
    y[2] = sum + 4.f * far_sum;
    y[3] = difference + 8.f * far_difference + m[5];
  }
};
struct OutputGradient {  // A
  template <typename F>
  static void apply(const F (&y)[4], F (&m)[6]) {
    const F even = y[0] + y[2], odd = y[1] + y[3], far_even = y[0] + 4.f * y[2], far_odd = 2.f * y[1] + 8.f * y[3];
    m[0] = y[0];
    m[1] = even + odd;
    m[2] = even - odd;
    m[3] = far_even + far_odd;
    m[4] = far_even - far_odd;
    m[5] = y[3];
  }
};
struct Weights {  // G
  template <typename F>
  static void apply(const F (&w)[3], F (&u)[6]) {
    const F even = (w[0] + w[2]) * (-1.f / 6), odd = w[1] * (1.f / 6);
    const F far_even = w[0] * (1.f / 24) + w[2] * (1.f / 6), far_odd = w[1] * (1.f / 12);
    u[0] = w[0] * 0.25f;
    u[1] = even - odd;
    u[2] = even + odd;
    u[3] = far_even + far_odd;
    u[4] = far_even - far_odd;
    u[5] = w[2];
  }
};
struct WeightsGradient {  // G^T
  template <typename F>
  static void apply(const F (&u)[6], F (&w)[3]) {
    const F near = (u[1] + u[2]) * (1.f / 6), far = u[3] + u[4];
    w[0] = u[0] * 0.25f - near + far * (1.f / 24);
    w[1] = (u[2] - u[1]) * (1.f / 6) + (u[3] - u[4]) * (1.f / 12);
    w[2] = far * (1.f / 6) - near + u[5];
  }
};

// Applies Step's matrix M along both axes: M X M^T.
template <typename Step, int kFrom, int kTo, typename F>
inline void transform(const F (&from)[kFrom][kFrom], F (&to)[kTo][kTo]) {
  F columns[kFrom][kTo];  // transposed
  for (int c = 0; c < kFrom; ++c) {
    F column[kFrom];
    for (int r = 0; r < kFrom; ++r) column[r] = from[r][c];
    Step::apply(column, columns[c]);
  }
  for (int r = 0; r < kTo; ++r) {
    F row[kFrom];
    for (int c = 0; c < kFrom; ++c) row[c] = columns[c][r];
    Step::apply(row, to[r]);
  }
}

// Winograd transforms of images, gradients and weights, and the inverse transforms, vectorised over channels.

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
