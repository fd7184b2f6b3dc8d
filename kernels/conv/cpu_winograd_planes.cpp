#include "kernels/conv/cpu_winograd_planes.h"

#include <algorithm>

#include "kernels/device/cpu/dnnl_op.h"
#include "kernels/device/cpu/lanes.h"

namespace dp::kernels::winograd {
namespace {

using V = Lanes<kLanes>;
using Floats = V::Floats;

// Calls body(matrix row, sample, first row, first column) for each tile; the last two are those of the tile's results.
template <typename Body>
void for_tiles(const Tiles& tiles, const TileRange& range, const Body& body) {
  const std::int64_t wide = tiles.wide(), each = tiles.high() * wide;
  for (std::int64_t t = range.begin; t < range.end; ++t) {
    const std::int64_t n = (range.first + t) / each, at = (range.first + t) % each;
    body(t, n, at / wide * kOut, at % wide * kOut);
  }
}

// The cells (row + i, column + j) of a plane; zero outside the plane.
template <int kSize>
void load_cells(const ActivationView& v, const float* plane, std::int64_t row, std::int64_t column,
                Floats (&cells)[kSize][kSize]) {
  const bool inside = row >= 0 && column >= 0 && row + kSize <= v.h && column + kSize <= v.w;
  const float* corner = plane + row * v.stride_h + column * v.stride_w;
  for (std::int64_t i = 0; i < kSize; ++i)
    for (std::int64_t j = 0; j < kSize; ++j)
      cells[i][j] = inside || (row + i >= 0 && row + i < v.h && column + j >= 0 && column + j < v.w)
                        ? V::load(corner + i * v.stride_h + j * v.stride_w)
                        : Floats{};
}

template <typename Step, int kSize>
void take(const ActivationView& v, const float* x, const Tiles& tiles, const TileRange& range, std::int64_t padding,
          const Matrices& to) {
  for_tiles(tiles, range, [&](std::int64_t t, std::int64_t n, std::int64_t row, std::int64_t column) {
    for (std::int64_t block = 0; block < v.blocks; ++block)
      for (std::int64_t lane = 0; lane < v.block; lane += kLanes) {
        Floats cells[kSize][kSize], taken[kIn][kIn];
        load_cells(v, x + v.at(n, block) + lane, row - padding, column - padding, cells);
        transform<Step>(cells, taken);
        float* out = to.at(0, t) + block * v.block + lane;
        for (int p = 0; p < kPositions; ++p) V::store(out + p * to.stride(), taken[p / kIn][p % kIn]);
      }
  });
}

}  // namespace

bool fits_lanes(std::int64_t block) { return block % kLanes == 0; }

void take_inputs(const ActivationView& view, const float* x, const Tiles& tiles, const TileRange& range,
                 std::int64_t padding, const Matrices& to) {
  take<Input, kIn>(view, x, tiles, range, padding, to);
}

void take_gradients(const ActivationView& view, const float* dy, const Tiles& tiles, const TileRange& range,
                    const Matrices& to) {
  take<OutputGradient, kOut>(view, dy, tiles, range, 0, to);
}

void give_results(const Matrices& from, const Tiles& tiles, const TileRange& range, const float* bias, bool relu,
                  const ActivationView& v, float* y) {
  for_tiles(tiles, range, [&](std::int64_t t, std::int64_t n, std::int64_t row, std::int64_t column) {
    const std::int64_t rows = std::min<std::int64_t>(kOut, v.h - row),
                       columns = std::min<std::int64_t>(kOut, v.w - column);
    for (std::int64_t block = 0; block < v.blocks; ++block)
      for (std::int64_t lane = 0; lane < v.block; lane += kLanes) {
        const std::int64_t channel = block * v.block + lane;
        const float* in = from.at(0, t) + channel;
        Floats products[kIn][kIn], results[kOut][kOut];
        for (int p = 0; p < kPositions; ++p) products[p / kIn][p % kIn] = V::load(in + p * from.stride());
        transform<Output>(products, results);
        const Floats shift = bias == nullptr ? Floats{} : V::load(bias + channel);
        float* corner = y + v.at(n, block) + lane + row * v.stride_h + column * v.stride_w;
        for (std::int64_t i = 0; i < rows; ++i)
          for (std::int64_t j = 0; j < columns; ++j) {
            Floats value = results[i][j] + shift;
            if (relu) value = value < 0.f ? Floats{} : value;  // NaN stays NaN
            V::store(corner + i * v.stride_h + j * v.stride_w, value);
          }
      }
  });
}

bool view_weights(const DnnlDesc& md, WeightsView& view) {
  const dnnl_compat::Blocking b = dnnl_compat::blocking_of(md);
  if (!b.known || b.dims.size() != 4 || b.inner_axes != std::vector<std::int64_t>{1, 0}) return false;
  if (b.inner_sizes[0] != b.inner_sizes[1] || !fits_lanes(b.inner_sizes[0])) return false;
  view = {b.padded[0], b.padded[1], b.inner_sizes[0], b.strides[0], b.strides[1], b.strides[2], b.strides[3]};
  return true;
}

void take_weights(const WeightsView& v, const float* w, bool turned, std::int64_t begin, std::int64_t end,
                  const Matrices& to) {
  for (std::int64_t i = begin; i < end; ++i)
    for (std::int64_t o = 0; o < v.outputs; o += kLanes) {
      const float* from = w + v.at(o / v.block, i) + o % v.block;
      Floats taps[3][3], taken[kIn][kIn];
      for (int r = 0; r < 3; ++r)
        for (int c = 0; c < 3; ++c)
          taps[r][c] = V::load(from + (turned ? 2 - r : r) * v.stride_h + (turned ? 2 - c : c) * v.stride_w);
      transform<Weights>(taps, taken);
      for (int p = 0; p < kPositions; ++p) V::store(to.at(p, i) + o, taken[p / kIn][p % kIn]);
    }
}

void give_weight_gradients(const WeightsView& v, const Matrices& from, std::int64_t begin, std::int64_t end,
                           float* dw) {
  for (std::int64_t i = begin; i < end; ++i)
    for (std::int64_t o = 0; o < v.outputs; o += kLanes) {
      Floats products[kIn][kIn], taps[3][3];
      for (int p = 0; p < kPositions; ++p) products[p / kIn][p % kIn] = V::load(from.at(p, i) + o);
      transform<WeightsGradient>(products, taps);
      float* to = dw + v.at(o / v.block, i) + o % v.block;
      for (int r = 0; r < 3; ++r)
        for (int c = 0; c < 3; ++c) V::store(to + r * v.stride_h + c * v.stride_w, taps[r][c]);
    }
}

}  // namespace dp::kernels::winograd
