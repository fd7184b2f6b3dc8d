// The three matrix products of a convolution with every tile and split-K: bit-identical to plain loops with the same
// order of additions, for all orders of threads.
#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/conv/cuda_gemm_conv.h"
#include "kernels/device/cuda/cuda_op.h"
#include "kernels/linear/cuda_gemm.h"
#include "simulated_cuda/rig.h"
#include "support/catch.h"

namespace dp::simt::test {
namespace {

using namespace dp::kernels;
using namespace dp::kernels::cuda;

struct Layer {
  TensorDesc x, w, y;
  Window window;
};

Layer layer(std::int64_t batch, std::int64_t in, std::int64_t out, std::int64_t height, std::int64_t width,
            Window window, bool row_major = false) {
  const auto side = [&](std::int64_t size) {
    return (size + 2 * window.padding.h - window.kernel.h) / window.stride.h + 1;
  };
  const auto desc = [&](const Shape& shape) {
    return TensorDesc{shape, DType::f32, row_major ? plain(shape, DType::f32) : channels_last(shape, DType::f32)};
  };
  return {desc({batch, in, height, width}), desc({out, in, window.kernel.h, window.kernel.h}),
          desc({batch, out, side(height), side(width)}), window};
}

std::int64_t place(const TensorDesc& t, std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
  const std::int64_t channels = t.shape[1], height = t.shape[2], width = t.shape[3];
  if (order_of(t).channels_last) return ((n * height + h) * width + w) * channels + c;
  return ((n * channels + c) * height + h) * width + w;
}

std::vector<float> random_floats(const TensorDesc& t, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> values(-1, 1);
  std::vector<float> result(static_cast<std::size_t>(t.shape.numel()));
  for (float& value : result) value = values(generator);
  return result;
}

// Adds the products of one sum in ranges of whole steps of 16, then adds the ranges.
class Sum {
 public:
  void add(float a, float b) { products_.push_back({a, b}); }
  float take(int splits) const {
    const std::size_t steps = (products_.size() + 15) / 16;
    const std::size_t each = (steps + static_cast<std::size_t>(splits) - 1) / static_cast<std::size_t>(splits) * 16;
    float all = 0;
    for (int split = 0; split < splits; ++split) {
      float sum = 0;
      const std::size_t begin = static_cast<std::size_t>(split) * each;
      for (std::size_t k = begin; k < std::min(begin + each, products_.size()); ++k)
        sum = std::fma(products_[k].first, products_[k].second, sum);
      if (splits == 1) return sum;
      all += sum;
    }
    return all;
  }

 private:
  std::vector<std::pair<float, float>> products_;
};

struct Tensors {
  std::vector<float> x, w, dy;
};

std::vector<float> forward(const Layer& l, const Tensors& t, int splits) {
  std::vector<float> y(t.dy.size());
  const Shape &xs = l.x.shape, &ys = l.y.shape;
  for (std::int64_t n = 0; n < ys[0]; ++n)
    for (std::int64_t o = 0; o < ys[1]; ++o)
      for (std::int64_t i = 0; i < ys[2]; ++i)
        for (std::int64_t j = 0; j < ys[3]; ++j) {
          Sum sum;
          for (int row = 0; row < l.window.kernel.h; ++row)
            for (int col = 0; col < l.window.kernel.h; ++col)
              for (std::int64_t c = 0; c < xs[1]; ++c) {
                const std::int64_t h = i * l.window.stride.h - l.window.padding.h + row;
                const std::int64_t w = j * l.window.stride.h - l.window.padding.h + col;
                const bool inside = h >= 0 && h < xs[2] && w >= 0 && w < xs[3];
                sum.add(inside ? t.x[place(l.x, n, c, h, w)] : 0.f, t.w[place(l.w, o, c, row, col)]);
              }
          y[place(l.y, n, o, i, j)] = sum.take(splits);
        }
  return y;
}

std::vector<float> data(const Layer& l, const Tensors& t, int splits) {
  std::vector<float> dx(t.x.size());
  const Shape &xs = l.x.shape, &ys = l.y.shape;
  const int stride = l.window.stride.h;
  for (std::int64_t n = 0; n < xs[0]; ++n)
    for (std::int64_t c = 0; c < xs[1]; ++c)
      for (std::int64_t h = 0; h < xs[2]; ++h)
        for (std::int64_t w = 0; w < xs[3]; ++w) {
          Sum sum;
          for (int row = 0; row < l.window.kernel.h; ++row)
            for (int col = 0; col < l.window.kernel.h; ++col) {
              const std::int64_t down = h + l.window.padding.h - row, across = w + l.window.padding.h - col;
              if (down % stride != 0 || across % stride != 0) continue;
              const std::int64_t i = down / stride, j = across / stride;
              const bool inside = i >= 0 && i < ys[2] && j >= 0 && j < ys[3];
              for (std::int64_t o = 0; o < ys[1]; ++o)
                sum.add(inside ? t.dy[place(l.y, n, o, i, j)] : 0.f, t.w[place(l.w, o, c, row, col)]);
            }
          dx[place(l.x, n, c, h, w)] = sum.take(splits);
        }
  return dx;
}

std::vector<float> weights(const Layer& l, const Tensors& t, int splits) {
  std::vector<float> dw(t.w.size());
  const Shape &xs = l.x.shape, &ys = l.y.shape;
  for (std::int64_t o = 0; o < ys[1]; ++o)
    for (std::int64_t c = 0; c < xs[1]; ++c)
      for (int row = 0; row < l.window.kernel.h; ++row)
        for (int col = 0; col < l.window.kernel.h; ++col) {
          Sum sum;
          for (std::int64_t n = 0; n < ys[0]; ++n)
            for (std::int64_t i = 0; i < ys[2]; ++i)
              for (std::int64_t j = 0; j < ys[3]; ++j) {
                const std::int64_t h = i * l.window.stride.h - l.window.padding.h + row;
                const std::int64_t w = j * l.window.stride.h - l.window.padding.h + col;
                const bool inside = h >= 0 && h < xs[2] && w >= 0 && w < xs[3];
                sum.add(inside ? t.x[place(l.x, n, c, h, w)] : 0.f, t.dy[place(l.y, n, o, i, j)]);
              }
          dw[place(l.w, o, c, row, col)] = sum.take(splits);
        }
  return dw;
}

template <typename Points>
std::vector<float> on_device(const Geometry& g, int parts, bool quads_a, bool quads_b, const std::vector<float>& a,
                             const std::vector<float>& b, std::size_t results, const GemmChoice& choice) {
  const Gemm<Points, Nothing> gemm(DType::f32, g, parts, false, false, quads_a, quads_b, choice);
  const TestStream stream;
  const DeviceArray<float> device_a(a), device_b(b), out(std::vector<float>(results, NAN));
  const DeviceArray<float> workspace(std::vector<float>(gemm.workspace_bytes() / sizeof(float) + 1, NAN));
  gemm.enqueue(stream, "product", device_a, device_b, nullptr, out, nullptr, workspace, {});
  stream.finish();
  return out.values();
}

void check(const Layer& l) {
  const Tensors t{random_floats(l.x, 1), random_floats(l.w, 2), random_floats(l.y, 3)};
  const Geometry g = geometry_of(l.x, l.w, l.y, l.window);
  const bool x = input_in_quads(g), w = weights_in_quads(g), y = output_in_quads(g);
  std::size_t turn = 0;
  for (const int splits : {1, 3}) {
    const auto expected_y = forward(l, t, splits), expected_dx = data(l, t, splits),
               expected_dw = weights(l, t, splits);
    for (const TileKind tile : kTileKinds) {
      use(schedules()[turn++ % schedules().size()]);
      INFO("tile " << to_string(tile) << " splits " << splits << " x " << to_string(l.x.shape) << " w "
                   << to_string(l.w.shape));
      const GemmChoice choice{tile, splits};
      CHECK(on_device<ForwardPoints>(g, 1, x, w, t.x, t.w, t.dy.size(), choice) == expected_y);
      CHECK(on_device<DataPoints>(g, g.stride * g.stride, y, w, t.dy, t.w, t.x.size(), choice) == expected_dx);
      CHECK(on_device<WeightsPoints>(g, 1, x, y, t.x, t.dy, t.w.size(), choice) == expected_dw);
    }
  }
}

}  // namespace

TEST_CASE("matrix products in every tile and split have the bits of plain loops in the same order") {
  const FreshSimulation fresh;
  check(layer(2, 12, 20, 5, 7, {3, 1, 1}));
  check(layer(1, 8, 132, 9, 6, {3, 2, 1}));
  check(layer(1, 5, 7, 11, 13, {3, 2, 0}));
  check(layer(3, 68, 4, 4, 3, {1, 2, 0}));
  check(layer(1, 4, 8, 9, 8, {5, 3, 2}));
  check(layer(2, 8, 4, 5, 5, {3, 1, 1}, true));
  CHECK(take_reports().empty());
}

TEST_CASE("tiles and splits follow from shapes and stay within the workspace") {
  for (const std::int64_t rows : {1, 64, 1000, 65536})
    for (const std::int64_t cols : {1, 10, 64, 512})
      for (const std::int64_t depth : {0, 9, 576, 100000}) {
        const GemmChoice choice =
            choose({.rows = rows, .cols = cols, .depth = depth, .parts = 1, .results = rows * cols});
        CHECK(choice.splits >= 1);
        CHECK((choice.splits == 1 || choice.splits * rows * cols <= 1 << 24));
        CHECK((choice.splits == 1 || depth / choice.splits >= 128));
      }
  // A weight gradient with few results and many cells must be split over many blocks.
  CHECK(choose({.rows = 576, .cols = 64, .depth = 65536, .parts = 1, .results = 576 * 64}).splits >= 16);
  CHECK(choose({.rows = 65536, .cols = 128, .depth = 1152, .parts = 1, .results = 65536 * 128}).tile == TileKind::wide);
}

}  // namespace dp::simt::test
