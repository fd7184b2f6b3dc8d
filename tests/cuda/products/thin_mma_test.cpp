// Tensor-core convolutions of images with few channels against plain loops in double over the same rounded inputs: both
// 16-bit types, odd shapes, several images in a tile. The bits must not depend on the order of threads.
#include "cuda/last.h"
#include "kernels/conv/cuda_mma_thin.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/device/cuda/cuda_op.h"
#include "kernels/low_float.h"
#include "simulated_cuda/rig.h"
#include "support/catch.h"

namespace dp::simt::test {
namespace {

using namespace dp::kernels;
using namespace dp::kernels::cuda;
using dp::test::last;
using Bits = std::vector<std::uint16_t>;

struct Layer {
  TensorDesc x, w, y;
  Window window;
};

Layer layer(DType type, std::int64_t batch, std::int64_t in, std::int64_t out, std::int64_t height, std::int64_t width,
            Window window) {
  const auto side = [&](std::int64_t size) {
    return (size + 2 * window.padding.h - window.kernel.h) / window.stride.h + 1;
  };
  return {last({batch, in, height, width}, type), last({out, in, window.kernel.h, window.kernel.h}, type),
          last({batch, out, side(height), side(width)}, type), window};
}

double value_of(DType type, std::uint16_t bits) {
  return static_cast<double>(type == DType::bf16 ? to_float(BFloat16{bits}) : to_float(Float16{bits}));
}

Bits random_bits(const TensorDesc& t, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> values(-1, 1);
  Bits result(static_cast<std::size_t>(t.shape.numel()));
  for (std::uint16_t& bits : result) {
    const float value = values(generator);
    bits = t.type == DType::bf16 ? from_float<BFloat16>(value).bits : from_float<Float16>(value).bits;
  }
  return result;
}

// Index of an element in its tensor's layout.
std::size_t place(const TensorDesc& t, std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
  const Shape& s = t.shape;
  return static_cast<std::size_t>(is_channels_last(t) && s[1] > 1 ? ((n * s[2] + h) * s[3] + w) * s[1] + c
                                                                  : ((n * s[1] + c) * s[2] + h) * s[3] + w);
}

// Calls product(n, o, i, j, c, row, col, h, v) for each product of the convolution.
template <typename Product>
void for_products(const Layer& l, const Product& product) {
  const Shape &xs = l.x.shape, &ys = l.y.shape;
  for (std::int64_t n = 0; n < ys[0]; ++n)
    for (std::int64_t i = 0; i < ys[2]; ++i)
      for (std::int64_t j = 0; j < ys[3]; ++j)
        for (int row = 0; row < l.window.kernel.h; ++row)
          for (int col = 0; col < l.window.kernel.h; ++col) {
            const std::int64_t h = i * l.window.stride.h - l.window.padding.h + row;
            const std::int64_t v = j * l.window.stride.h - l.window.padding.h + col;
            if (h < 0 || h >= xs[2] || v < 0 || v >= xs[3]) continue;
            for (std::int64_t c = 0; c < xs[1]; ++c)
              for (std::int64_t o = 0; o < ys[1]; ++o)
                product(place(l.y, n, o, i, j), place(l.x, n, c, h, v), place(l.w, o, c, row, col));
          }
}

// Results in double, and sums of magnitudes: rounding errors are relative to the latter.
struct Sums {
  std::vector<double> values, magnitudes;
  double longest;  // products per sum

  Sums(std::int64_t count, std::int64_t products)
      : values(static_cast<std::size_t>(count)), magnitudes(values.size()), longest(static_cast<double>(products)) {}
  void add(std::size_t at, double product) { values[at] += product, magnitudes[at] += std::abs(product); }
};

// The bound of mma_test.cpp: n units of 2^-24 of the sum of magnitudes for n products on sm_90, then the rounding to
// the result's type.
void check_close(const char* what, const std::vector<double>& got, const Sums& wanted, double rounding) {
  REQUIRE(got.size() == wanted.values.size());
  std::size_t wrong = 0, first = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double units = simulation().compute_capability < 90 ? 11.0 / 8 : 1;  // per product
    const double bound = units * wanted.longest * 0x1p-24 * wanted.magnitudes[i];
    const double off = std::abs(got[i] - wanted.values[i]);
    if (!(off <= bound + rounding * (std::abs(wanted.values[i]) + bound)) && wrong++ == 0) first = i;
  }
  INFO(what << ": the first wrong result is " << first << " of " << got.size() << ", " << got[first] << " for "
            << wanted.values[first]);
  CHECK(wrong == 0);
}

double half_unit(DType type) { return type == DType::bf16 ? 0x1p-8 : 0x1p-11; }  // relative rounding error

std::vector<double> values(DType type, const Bits& bits) {
  std::vector<double> result;
  for (const std::uint16_t b : bits) result.push_back(value_of(type, b));
  return result;
}

void run(CudaOp& op, const std::vector<void*>& args) {
  const TestStream stream;
  const DeviceArray<float> workspace(std::vector<float>(op.workspace_bytes() / sizeof(float) + 2, NAN));
  op.run_on(stream, args, workspace.get());
  stream.finish();
}

// Runs in the first `count` schedules. All must give the same bits.
template <typename Run>
auto same_in_all(std::size_t count, Run once) {
  use(schedules()[0]);
  auto first = once();
  for (std::size_t i = 1; i < count; ++i) {
    use(schedules()[i]);
    CHECK(once() == first);
  }
  return first;
}

std::string text(const Layer& l) {
  return "x " + to_string(l.x.shape) + " w " + to_string(l.w.shape) + (l.x.type == DType::bf16 ? " bf16" : " f16");
}

void check_forward(const Layer& l, bool ends, std::size_t turns) {  // ends: with bias and ReLU
  INFO(text(l));
  const Bits x = random_bits(l.x, 1), w = random_bits(l.w, 2);
  const auto outputs = static_cast<std::size_t>(l.w.shape[0]);
  std::vector<float> bias(outputs, NAN);
  for (std::size_t o = 0; ends && o < outputs; ++o) bias[o] = static_cast<float>(o % 7) - 3.5f;
  Sums wanted(l.y.shape.numel(), l.w.shape.numel() / l.w.shape[0] + 1);
  for_products(l, [&](std::size_t y, std::size_t at, std::size_t weight) {
    wanted.add(y, value_of(l.x.type, x[at]) * value_of(l.x.type, w[weight]));
  });
  for (std::size_t i = 0; ends && i < wanted.values.size(); ++i) {
    wanted.add(i, static_cast<double>(bias[i % outputs]));
    wanted.values[i] = std::max(0.0, wanted.values[i]);
  }
  const auto op = make_thin_mma(Conv2dForward{l.x, l.w, l.y, l.window, ends, ends});
  const Bits y = same_in_all(turns, [&] {
    const DeviceArray<std::uint16_t> device_x(x), device_w(w), out(Bits(wanted.values.size(), 0xffff));
    const DeviceArray<float> device_bias(bias);
    run(*op, {device_x.get(), device_w.get(), device_bias.get(), out.get()});
    return out.values();
  });
  check_close("y", values(l.x.type, y), wanted, half_unit(l.x.type));
}

// NormConv2dForward stores the same y, and the moments of y.
void check_moments(const Layer& l, std::size_t turns) {
  INFO(text(l));
  const Bits x = random_bits(l.x, 1), w = random_bits(l.w, 2);
  const auto outputs = static_cast<std::size_t>(l.w.shape[0]),
             rows = static_cast<std::size_t>(l.y.shape.numel()) / outputs;
  const double eps = 1e-5;
  const auto plain_op = make_thin_mma(Conv2dForward{l.x, l.w, l.y, l.window, false, false});
  const auto op = make_thin_mma(NormConv2dForward{l.x, l.w, l.y, l.window, false, true, eps});
  CHECK(op->implementation() == "own:mma thin fused");
  const DeviceArray<std::uint16_t> device_x(x), device_w(w), out(Bits(rows * outputs, 0xffff));
  run(*plain_op, {device_x.get(), device_w.get(), nullptr, out.get()});
  const Bits y = out.values();
  const std::vector<double> unset(1 + 2 * outputs, NAN);
  const auto [moments, stats] = same_in_all(turns, [&] {
    const DeviceArray<std::uint16_t> fused_y(Bits(rows * outputs, 0xffff));
    const DeviceArray<double> device_moments(unset), device_stats(unset);
    const std::vector<void*> args{
        device_x.get(),       nullptr,           nullptr, nullptr, device_w.get(), fused_y.get(),
        device_moments.get(), device_stats.get()};
    run(*op, args);
    run(*op, args);  // the block counters have been reset
    CHECK(fused_y.values() == y);
    return std::pair(device_moments.values(), device_stats.values());
  });
  CHECK(moments[0] == static_cast<double>(rows));
  for (std::size_t c = 0; c < outputs; ++c) {
    long double sum = 0, squares = 0;
    for (std::size_t row = 0; row < rows; ++row)
      sum += static_cast<long double>(value_of(l.x.type, y[row * outputs + c]));
    const long double mean = sum / static_cast<long double>(rows);
    for (std::size_t row = 0; row < rows; ++row) {
      const long double away = static_cast<long double>(value_of(l.x.type, y[row * outputs + c])) - mean;
      squares += away * away;
    }
    // Both within 2^-20 of the deviation and of the squares, as in fused_forward_test.cpp.
    const auto wanted_squares = static_cast<double>(squares);
    const double deviation = std::sqrt(wanted_squares / static_cast<double>(rows));
    CHECK(std::abs(moments[1 + c] - static_cast<double>(mean)) <= 0x1p-20 * deviation + 1e-30);
    CHECK(std::abs(moments[1 + outputs + c] - wanted_squares) <= 0x1p-20 * wanted_squares + 1e-30);
    CHECK(stats[1 + c] == moments[1 + c]);
    const double scale = 1 / std::sqrt(moments[1 + outputs + c] / static_cast<double>(rows) + eps);
    CHECK(std::abs(stats[1 + outputs + c] - scale) <= 1e-12 * scale);
  }
}

const Layer kOdd = layer(DType::f16, 5, 3, 72, 9, 7, {3, 1, 1});  // several images in a tile, two tiles of channels

}  // namespace

TEST_CASE("thin mma: forward of odd shapes agrees with plain loops in bf16 and f16") {
  const FreshSimulation fresh;
  for (const DType type : {DType::bf16, DType::f16})
    for (const int channels : {1, 2, 3}) check_forward(layer(type, 2, channels, 24, 5, 7, {3, 1, 1}), channels == 2, 1);
  check_forward(layer(DType::bf16, 3, 3, 8, 11, 6, {3, 2, 1}), true, 1);
  check_forward(layer(DType::bf16, 1, 3, 16, 9, 8, {5, 1, 2}), false, 1);
  check_forward(layer(DType::f16, 1, 3, 8, 13, 17, {7, 2, 3}), true, 1);
  check_forward(layer(DType::f16, 300, 3, 8, 1, 1, {3, 1, 1}), false, 1);
  check_forward(layer(DType::bf16, 7, 1, 8, 6, 6, {2, 3, 0}), false, 1);  // cells of x that no window reads
  Layer rows = layer(DType::bf16, 2, 3, 16, 6, 5, {3, 1, 1});
  rows.x.layout = plain(rows.x.shape, DType::bf16);
  rows.w.layout = plain(rows.w.shape, DType::bf16);
  check_forward(rows, false, 1);
  CHECK(take_reports().empty());
}

TEST_CASE("thin mma: forward agrees with plain loops in any order of threads and under the truncation of sm_80") {
  const FreshSimulation fresh;
  check_forward(kOdd, false, schedules().size());
  check_forward(layer(DType::bf16, 1, 3, 64, 32, 32, {3, 1, 1}), true, 2);
  simulation().compute_capability = 80;
  check_forward(kOdd, true, 1);
  CHECK(take_reports().empty());
}

TEST_CASE("thin mma: moments of y agree with sums in long double in any order of threads") {
  const FreshSimulation fresh;
  check_moments(kOdd, schedules().size());
  check_moments(layer(DType::bf16, 1, 3, 64, 20, 32, {3, 1, 1}), 2);
  CHECK(take_reports().empty());
}

TEST_CASE("thin mma: a NaN in x affects only the outputs whose window contains it") {
  const FreshSimulation fresh;
  const Layer l = layer(DType::bf16, 2, 3, 8, 6, 5, {3, 1, 1});
  Bits x = random_bits(l.x, 1);
  x[place(l.x, 1, 2, 0, 4)] = 0x7fc0;
  const auto op = make_thin_mma(Conv2dForward{l.x, l.w, l.y, l.window, false, false});
  const DeviceArray<std::uint16_t> device_x(x), device_w(random_bits(l.w, 2)),
      out(Bits(static_cast<std::size_t>(l.y.shape.numel())));
  run(*op, {device_x.get(), device_w.get(), nullptr, out.get()});
  const Bits y = out.values();
  for (std::int64_t n = 0; n < 2; ++n)
    for (std::int64_t i = 0; i < 6; ++i)
      for (std::int64_t j = 0; j < 5; ++j)
        CHECK(std::isnan(value_of(DType::bf16, y[place(l.y, n, 3, i, j)])) == (n == 1 && i <= 1 && j >= 3));
  CHECK(take_reports().empty());
}

TEST_CASE("thin mma: candidates that fit are offered, but not used without a trial") {
  const CudaOpOptions options{.multiprocessors = 132, .compute_capability = 90, .shared_memory = 227 * 1024};
  const Layer l = layer(DType::bf16, 512, 3, 64, 32, 32, {3, 1, 1});
  const auto names = [&](const OpDesc& desc, const CudaOpOptions& with) {
    std::vector<std::string> all;
    for (const Candidate& candidate : thin_mma_candidates(desc, with)) {
      all.push_back(candidate.name);
      CHECK(candidate.make()->implementation() == candidate.name);
    }
    return all;
  };
  using Names = std::vector<std::string>;
  const Conv2dForward forward{l.x, l.w, l.y, l.window, true, true};
  NormConv2dForward norm{l.x, l.w, l.y, l.window, false, true, 1e-5};
  CHECK(names(forward, options) == Names{"own:mma thin"});
  CHECK(names(norm, options) == Names{"own:mma thin fused"});
  auto ordinary = make(forward, options);
  const std::string name = ordinary->implementation();
  const std::vector<Candidate> beside = other_candidates(forward, *ordinary, options);
  CHECK(std::ranges::count(beside, "own:mma thin", &Candidate::name) == 1);
  CHECK(untried(forward, std::move(ordinary), options)->implementation() == name);

  CudaOpOptions less = options;
  less.compute_capability = 75;
  CHECK(names(forward, less).empty());
  less = options;
  less.shared_memory = 16 * 1024;
  CHECK(names(forward, less).empty());
  norm.norm = true;
  CHECK(names(norm, options).empty());
  const auto none = [&](const Layer& with) {
    return names(Conv2dForward{with.x, with.w, with.y, with.window, false, false}, options).empty();
  };
  CHECK(!none(layer(DType::f16, 2, 3, 64, 224, 224, {7, 2, 3})));
  CHECK(none(layer(DType::f32, 2, 3, 64, 32, 32, {3, 1, 1})));
  CHECK(none(layer(DType::bf16, 2, 4, 64, 32, 32, {3, 1, 1})));
  CHECK(none(layer(DType::bf16, 2, 3, 60, 32, 32, {3, 1, 1})));
  CHECK(none(layer(DType::bf16, 2, 3, 64, 32, 32, {9, 1, 1})));
  Layer rows = l;
  rows.y.layout = plain(rows.y.shape, DType::bf16);
  CHECK(none(rows));
}

}  // namespace dp::simt::test
