// Tensor-core convolutions against plain loops in double over the same rounded inputs: both 16-bit types, every tile,
// one or several split-K ranges. The bits must not depend on the order of threads or the cp.async mode.
#include "cuda/last.h"
#include "kernels/conv/cuda_mma.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "kernels/device/cuda/cuda_op.h"
#include "kernels/low_float.h"
#include "simulated_cuda/rig.h"
#include "support/catch.h"

namespace dp::simt::test {
namespace {

using namespace dp::kernels;
using namespace dp::kernels::cuda;
using dp::test::last;

struct Layer {
  TensorDesc x, w, y;
  Window window;
  bool bias = false, relu = false;

  Conv2dForward forward() const { return {x, w, y, window, bias, relu}; }
  Conv2dBackwardData data() const { return {y, w, x, window}; }
  Conv2dBackwardWeights weights() const { return {x, y, last(w.shape, DType::f32), window, false}; }
};

Layer layer(DType type, std::int64_t batch, std::int64_t in, std::int64_t out, std::int64_t height, std::int64_t width,
            Window window) {
  const auto side = [&](std::int64_t size) {
    return (size + 2 * window.padding.h - window.kernel.h) / window.stride.h + 1;
  };
  return {last({batch, in, height, width}, type), last({out, in, window.kernel.h, window.kernel.h}, type),
          last({batch, out, side(height), side(width)}, type), window};
}

// Offset in NHWC.
std::size_t place(const Shape& s, std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
  return static_cast<std::size_t>(((n * s[2] + h) * s[3] + w) * s[1] + c);
}

struct Low {
  DType type;
  std::uint16_t bits(float value) const {
    return type == DType::bf16 ? from_float<BFloat16>(value).bits : from_float<Float16>(value).bits;
  }
  double value(std::uint16_t bits) const {
    return static_cast<double>(type == DType::bf16 ? to_float(BFloat16{bits}) : to_float(Float16{bits}));
  }
  double half_unit() const { return type == DType::bf16 ? 0x1p-8 : 0x1p-11; }  // relative rounding error of the type
};

using Bits = std::vector<std::uint16_t>;

Bits random_bits(const TensorDesc& t, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> values(-1, 1);
  Bits result(static_cast<std::size_t>(t.shape.numel()));
  for (std::uint16_t& bits : result) bits = Low{t.type}.bits(values(generator));
  return result;
}

// Sums in double, and sums of magnitudes: rounding errors are relative to the latter.
struct Sums {
  std::vector<double> values, magnitudes;
  std::int64_t longest = 0;  // products per sum

  explicit Sums(const Shape& shape)
      : values(static_cast<std::size_t>(shape.numel())), magnitudes(static_cast<std::size_t>(shape.numel())) {}
  void add(std::size_t at, double a, double b) { values[at] += a * b, magnitudes[at] += std::abs(a * b); }
};

struct Tensors {
  Bits x, w, dy;
  std::vector<float> bias;
};
struct Expected {
  Sums y, dx, dw;
};

Expected expected(const Layer& l, const Tensors& t) {
  const Shape &xs = l.x.shape, &ws = l.w.shape, &ys = l.y.shape;
  const Low low{l.x.type};
  Expected e{Sums(ys), Sums(xs), Sums(ws)};
  e.y.longest = ws[1] * ws[2] * ws[3] + 1, e.dx.longest = ws[0] * ws[2] * ws[3], e.dw.longest = ys[0] * ys[2] * ys[3];
  const auto values = [&](const Bits& bits) {
    std::vector<double> result;
    for (const std::uint16_t b : bits) result.push_back(low.value(b));
    return result;
  };
  const std::vector<double> x = values(t.x), w = values(t.w), dy = values(t.dy);
  for (std::int64_t n = 0; n < ys[0]; ++n)
    for (std::int64_t i = 0; i < ys[2]; ++i)
      for (std::int64_t j = 0; j < ys[3]; ++j)
        for (std::int64_t o = 0; o < ys[1]; ++o) {
          const std::size_t at_y = place(ys, n, o, i, j);
          if (l.bias) e.y.add(at_y, static_cast<double>(t.bias[static_cast<std::size_t>(o)]), 1);
          for (int row = 0; row < l.window.kernel.h; ++row)
            for (int col = 0; col < l.window.kernel.h; ++col) {
              const std::int64_t h = i * l.window.stride.h - l.window.padding.h + row;
              const std::int64_t v = j * l.window.stride.h - l.window.padding.h + col;
              if (h < 0 || h >= xs[2] || v < 0 || v >= xs[3]) continue;
              const std::size_t at_x = place(xs, n, 0, h, v), at_w = place(ws, o, 0, row, col);
              for (std::size_t c = 0; c < static_cast<std::size_t>(xs[1]); ++c) {
                e.y.add(at_y, x[at_x + c], w[at_w + c]);
                e.dx.add(at_x + c, dy[at_y], w[at_w + c]);
                e.dw.add(at_w + c, dy[at_y], x[at_x + c]);
              }
            }
          if (l.relu) e.y.values[at_y] = std::max(0.0, e.y.values[at_y]);
        }
  return e;
}

// Error bound. A float32 sum of n products, in any order, is off by at most n units of 2^-24 of the sum of magnitudes.
// Tensor cores of sm_90 truncate 17 summands at 2^-25 of the largest and their sum at 2^-23: at most 10.5 units for 16
// products, so the same bound holds. Those of sm_80 truncate 9 summands at 2^-24 and their sum at 2^-23: 11 units for 8
// products. The rounding to the result's type is added.
void check_close(const char* what, const std::vector<double>& got, const Sums& wanted, double rounding) {
  REQUIRE(got.size() == wanted.values.size());
  std::size_t wrong = 0, first = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double units = simulation().compute_capability < 90 ? 11.0 / 8 : 1;  // per product
    const double bound = units * static_cast<double>(wanted.longest) * 0x1p-24 * wanted.magnitudes[i];
    const double off = std::abs(got[i] - wanted.values[i]);
    if (!(off <= bound + rounding * (std::abs(wanted.values[i]) + bound)) && wrong++ == 0) first = i;
  }
  INFO(what << ": the first wrong result is " << first << " of " << got.size() << ", " << got[first] << " for "
            << wanted.values[first]);
  CHECK(wrong == 0);
}

// Runs an op with a result of type T into memory filled with NaN.
template <typename T>
std::vector<T> run(CudaOp& op, const Bits& a, const Bits& b, const std::vector<float>* bias, std::size_t results) {
  const TestStream stream;
  const DeviceArray<std::uint16_t> device_a(a), device_b(b);
  std::vector<T> poison(results);
  std::fill(reinterpret_cast<unsigned char*>(poison.data()), reinterpret_cast<unsigned char*>(poison.data() + results),
            static_cast<unsigned char>(0xff));
  const DeviceArray<T> out(poison);
  const DeviceArray<float> biases(bias != nullptr ? *bias : std::vector<float>(1));
  const DeviceArray<float> workspace(std::vector<float>(op.workspace_bytes() / sizeof(float) + 1, NAN));
  std::vector<void*> args{device_a.get(), device_b.get(), out.get()};
  if (op.tensors()[2].type != DType::f32) {
    // Forward: the bias precedes the result. A data gradient has no bias.
    if (bias != nullptr) args = {device_a.get(), device_b.get(), biases.get(), out.get()};
  } else {
    args.push_back(nullptr);
  }
  op.run_on(stream, args, workspace.get());
  stream.finish();
  return out.values();
}

// Runs in the next `count` of all schedules. All must give the same bits.
class Turns {
 public:
  explicit Turns(std::size_t count) : count_(count) {}
  template <typename Run>
  auto same_in_all(Run run) {
    auto first = in_next(run);
    for (std::size_t i = 1; i < count_; ++i) CHECK(in_next(run) == first);
    return first;
  }

 private:
  template <typename Run>
  auto in_next(Run run) {
    use(schedules()[turn_++ % schedules().size()]);
    return run();
  }
  std::size_t count_, turn_ = 0;
};

std::vector<double> values(const Low& low, const Bits& bits) {
  std::vector<double> result;
  for (const std::uint16_t b : bits) result.push_back(low.value(b));
  return result;
}

void check(const Layer& l, const std::vector<MmaTileKind>& tiles, const std::vector<int>& splits, Turns turns) {
  const Low low{l.x.type};
  Tensors t{random_bits(l.x, 1), random_bits(l.w, 2), random_bits(l.y, 3), {}};
  for (std::int64_t i = 0; i < l.w.shape[0]; ++i) t.bias.push_back(static_cast<float>(i % 7) - 3.5f);
  const Expected e = expected(l, t);
  const std::vector<float> no_bias(static_cast<std::size_t>(l.w.shape[0]), NAN);
  INFO("x " << to_string(l.x.shape) << " w " << to_string(l.w.shape) << (l.x.type == DType::bf16 ? " bf16" : " f16"));
  for (const MmaTileKind tile : tiles) {
    INFO("tile " << to_string(tile));
    const bool resident = tile == MmaTileKind::resident || tile == MmaTileKind::warpgroup, wgmma = is_wgmma(tile);
    const auto stays = [&](const TensorDesc& image) {
      return wgmma ? image.shape[1] % 64 == 0 : !resident || image.shape[1] == 64;
    };
    if (stays(l.x)) {
      const auto forward = make_mma(l.forward(), {tile, 1});
      const auto y = turns.same_in_all(
          [&] { return run<std::uint16_t>(*forward, t.x, t.w, l.bias ? &t.bias : &no_bias, t.dy.size()); });
      check_close("y", values(low, y), e.y, low.half_unit());
    }
    if (l.window.stride.h <= 2 && stays(l.y)) {
      const auto data = make_mma(l.data(), {tile, 1});
      const auto dx = turns.same_in_all([&] { return run<std::uint16_t>(*data, t.dy, t.w, nullptr, t.x.size()); });
      check_close("dx", values(low, dx), e.dx, low.half_unit());
    }
    if (wgmma || (resident && (l.x.shape[1] % 64 != 0 || l.y.shape[1] % 64 != 0))) continue;
    for (const int split : splits) {
      INFO("splits " << split);
      const auto weights = make_mma(l.weights(), {tile, split});
      const auto dw = turns.same_in_all([&] { return run<float>(*weights, t.x, t.dy, nullptr, t.w.size()); });
      check_close("dw", {dw.begin(), dw.end()}, e.dw, 0x1p-24);
    }
  }
}

const std::vector<MmaTileKind> kAllTiles(std::begin(kMmaTileKinds), std::end(kMmaTileKinds));

}  // namespace

TEST_CASE(
    "mma: forward, data and weight gradients of odd shapes agree with plain loops for every tile in bf16 and f16") {
  const FreshSimulation fresh;
  for (const DType type : {DType::bf16, DType::f16}) {
    check(layer(type, 3, 24, 72, 5, 7, {3, 1, 1}), kAllTiles, {1, 3}, Turns(1));
    check(layer(type, 1, 8, 64, 5, 7, {3, 2, 1}), kAllTiles, {1}, Turns(1));
    check(layer(type, 2, 72, 8, 7, 5, {1, 2, 0}), kAllTiles, {2}, Turns(1));
  }
  CHECK(take_reports().empty());
}

TEST_CASE("mma: products agree with plain loops under the truncation of sm_80 and under float32 sums") {
  const FreshSimulation fresh;
  for (const bool sm_80 : {true, false}) {
    if (sm_80) simulation().compute_capability = 80;
    simulation().mma_sums = sm_80 ? MmaSums::as_measured : MmaSums::in_order;
    check(layer(DType::bf16, 1, 64, 72, 5, 7, {3, 1, 1}), {MmaTileKind::small, MmaTileKind::resident}, {2}, Turns(1));
    check(layer(DType::f16, 1, 24, 64, 5, 7, {3, 2, 1}), {MmaTileKind::small}, {1}, Turns(1));
    simulation().compute_capability = 90;
  }
  CHECK(take_reports().empty());
}

TEST_CASE("mma: bits do not depend on the order of threads or the form of cp.async") {
  const FreshSimulation fresh;
  const Turns all(schedules().size());
  for (const MmaTileKind tile : kMmaTileKinds) check(layer(DType::bf16, 1, 64, 24, 9, 8, {3, 1, 1}), {tile}, {2}, all);
  check(layer(DType::f16, 1, 24, 64, 6, 11, {3, 2, 0}), {MmaTileKind::small}, {1}, all);
  check(layer(DType::bf16, 2, 64, 64, 5, 7, {3, 1, 1}), kAllTiles, {2}, Turns(2));
  check(layer(DType::bf16, 1, 64, 64, 5, 7, {3, 1, 1}),
        {MmaTileKind::resident, MmaTileKind::warpgroup, MmaTileKind::wgmma_narrow}, {1}, Turns(1));
  check(layer(DType::bf16, 1, 64, 128, 5, 7, {3, 1, 1}), {MmaTileKind::wgmma_wide}, {}, Turns(1));
  CHECK(take_reports().empty());
}

TEST_CASE("mma: 64 channels at 32x32 with bias and ReLU agree with plain loops in any order of threads", "[matrix]") {
  const FreshSimulation fresh;
  Layer l = layer(DType::bf16, 1, 64, 64, 32, 32, {3, 1, 1});
  l.bias = l.relu = true;
  check(l, {MmaTileKind::tall, MmaTileKind::middle}, {4}, Turns(1));
  check(l, {MmaTileKind::resident}, {4}, Turns(schedules().size()));
  CHECK(take_reports().empty());
}

TEST_CASE("mma: cells resident in shared memory agree with plain loops in any order of threads", "[matrix]") {
  const FreshSimulation fresh;
  const Turns all(schedules().size());
  check(layer(DType::bf16, 3, 64, 64, 9, 11, {3, 1, 1}), {MmaTileKind::resident}, {2}, all);
  check(layer(DType::f16, 1, 64, 24, 5, 7, {3, 1, 1}), {MmaTileKind::resident}, {}, all);
  check(layer(DType::f16, 7, 72, 64, 7, 7, {3, 1, 1}), {MmaTileKind::resident}, {}, Turns(2));
  check(layer(DType::f16, 1, 64, 128, 3, 40, {3, 1, 1}), {MmaTileKind::resident}, {1, 5}, Turns(2));
  check(layer(DType::bf16, 1, 128, 64, 20, 1, {3, 1, 1}), {MmaTileKind::resident}, {1}, Turns(2));
  CHECK(take_reports().empty());
}

TEST_CASE("mma: wgmma kernels agree with plain loops in any order of threads", "[matrix]") {
  const FreshSimulation fresh;
  const Turns all(schedules().size());
  check(layer(DType::bf16, 3, 64, 64, 9, 11, {3, 1, 1}), {MmaTileKind::warpgroup}, {2}, all);
  check(layer(DType::f16, 40, 64, 128, 4, 4, {3, 1, 1}), {MmaTileKind::warpgroup}, {1, 3}, Turns(2));
  check(layer(DType::f16, 1, 128, 64, 3, 40, {3, 1, 1}), {MmaTileKind::warpgroup}, {1, 5}, Turns(2));
  check(layer(DType::f16, 1, 64, 24, 5, 7, {3, 1, 1}), {MmaTileKind::warpgroup}, {}, all);
  check(layer(DType::f16, 7, 72, 64, 7, 7, {3, 1, 1}), {MmaTileKind::warpgroup}, {}, Turns(2));
  Layer large = layer(DType::bf16, 1, 64, 64, 32, 32, {3, 1, 1});
  large.bias = large.relu = true;
  check(large, {MmaTileKind::warpgroup, MmaTileKind::wgmma_narrow}, {2}, all);
  check(layer(DType::bf16, 2, 64, 64, 20, 1, {3, 1, 1}), {MmaTileKind::warpgroup}, {1}, Turns(2));
  CHECK(take_reports().empty());
}

TEST_CASE("mma: wgmma with cells from registers agrees with plain loops in any order of threads", "[matrix]") {
  const FreshSimulation fresh;
  const Turns all(schedules().size());
  check(layer(DType::bf16, 3, 128, 72, 9, 11, {3, 1, 1}), {MmaTileKind::wgmma_wide}, {}, all);
  check(layer(DType::f16, 1, 64, 192, 5, 7, {3, 1, 1}), {MmaTileKind::wgmma_wide}, {}, all);
  check(layer(DType::f16, 20, 128, 128, 4, 4, {3, 1, 1}), {MmaTileKind::wgmma_wide}, {}, Turns(2));
  check(layer(DType::bf16, 3, 64, 64, 9, 11, {3, 1, 1}), {MmaTileKind::wgmma_narrow}, {}, all);
  check(layer(DType::f16, 1, 64, 24, 3, 40, {3, 1, 1}), {MmaTileKind::wgmma_narrow}, {}, Turns(2));
  CHECK(take_reports().empty());
}

TEST_CASE("mma: 5x5 windows, padding beyond the image, and more split ranges than steps agree with plain loops") {
  const FreshSimulation fresh;
  check(layer(DType::bf16, 1, 8, 8, 6, 6, {5, 1, 2}), {MmaTileKind::small}, {7}, Turns(1));
  check(layer(DType::f16, 2, 16, 8, 1, 1, {3, 1, 1}), {MmaTileKind::middle}, {5}, Turns(1));
  check(layer(DType::f16, 2, 8, 8, 1, 3, {3, 2, 1}), {MmaTileKind::large}, {1}, Turns(1));
  CHECK(take_reports().empty());
}

TEST_CASE("mma: the bias gradient and the weight gradient share one workspace") {
  const FreshSimulation fresh;
  Layer l = layer(DType::bf16, 2, 8, 24, 6, 5, {3, 1, 1});
  const Bits x = random_bits(l.x, 1), dy = random_bits(l.y, 3);
  Conv2dBackwardWeights desc = l.weights();
  desc.bias = true;
  for (const int splits : {1, 3}) {
    const auto op = make_mma(desc, {MmaTileKind::small, splits});
    const TestStream stream;
    const DeviceArray<std::uint16_t> device_x(x), device_dy(dy);
    const DeviceArray<float> dw(std::vector<float>(l.w.shape.numel(), NAN)), db(std::vector<float>(24, NAN));
    const DeviceArray<float> workspace(std::vector<float>(op->workspace_bytes() / sizeof(float) + 1, NAN));
    op->run_on(stream, std::vector<void*>{device_x.get(), device_dy.get(), dw.get(), db.get()}, workspace.get());
    stream.finish();
    const std::vector<float> got_dw = dw.values(), got_db = db.values();
    check_close("dw", {got_dw.begin(), got_dw.end()}, expected(l, {x, Bits(l.w.shape.numel()), dy, {}}).dw, 0x1p-24);
    Sums sums({24, 1});
    sums.longest = 60;
    for (std::size_t i = 0; i < dy.size(); ++i) sums.add(i % 24, Low{DType::bf16}.value(dy[i]), 1);
    check_close("db", {got_db.begin(), got_db.end()}, sums, 0x1p-24);
  }
  CHECK(take_reports().empty());
}

TEST_CASE("mma: candidates that fit are offered, the likeliest first, and the first is used without tuning") {
  const CudaOpOptions options{.multiprocessors = 132, .compute_capability = 90, .shared_memory = 227 * 1024};
  const Layer l = layer(DType::bf16, 512, 64, 64, 32, 32, {3, 1, 1});
  for (const OpDesc& desc : {OpDesc(l.forward()), OpDesc(l.data()), OpDesc(l.weights())}) {
    const std::vector<Candidate> candidates = mma_candidates(desc, options);
    REQUIRE(candidates.size() >= 4);
    CHECK(candidates.front().name.find("own:mma resident") == 0);
    std::set<std::string> names;
    for (const Candidate& candidate : candidates) {
      CHECK(names.insert(candidate.name).second);
      CHECK(candidate.make()->implementation() == candidate.name);
    }
    std::visit(
        [&](const auto& d) {
          auto ordinary = make(d, options);
          const std::string name = ordinary->implementation();
          const std::vector<Candidate> beside = other_candidates(desc, *ordinary, options);
          CHECK(beside.front().name == candidates.front().name);
          CHECK(beside.size() > candidates.size());
          CHECK(untried(desc, std::move(ordinary), options)->implementation() == candidates.front().name);
          CudaOpOptions old = options;
          old.compute_capability = 75;
          CHECK(mma_candidates(desc, old).empty());
          CHECK(untried(desc, make(d, old), old)->implementation() == name);
          CudaOpOptions little = options;
          little.shared_memory = 99 * 1024;
          if (!std::is_same_v<std::decay_t<decltype(d)>, Conv2dBackwardWeights>)
            for (const Candidate& candidate : mma_candidates(desc, little))
              CHECK(candidate.name.find("resident") == std::string::npos);
        },
        desc);
  }
  // wgmma comes first where it can be used, and is used without a trial.
  CudaOpOptions hopper = options;
  hopper.wgmma = true;
  for (const OpDesc& desc : {OpDesc(l.forward()), OpDesc(l.data()), OpDesc(l.weights())}) {
    const std::vector<Candidate> fewer = mma_candidates(desc, options), all = mma_candidates(desc, hopper);
    REQUIRE(all.size() > fewer.size());
    for (std::size_t i = 0; i < all.size(); ++i)
      CHECK((i < all.size() - fewer.size()) == (all[i].family == family::warpgroup || all[i].family == family::wgmma));
  }
  CHECK(mma_candidates(l.weights(), hopper).front().name.starts_with("own:mma warpgroup"));
  hopper.shared_memory = 99 * 1024;
  CHECK(mma_candidates(l.forward(), hopper).front().family == family::mma);
  // Few results and long sums: many split-K ranges.
  const auto weights = mma_candidates(layer(DType::f16, 512, 64, 128, 32, 32, {3, 2, 1}).weights(), options);
  REQUIRE(!weights.empty());
  CHECK(weights.front().make()->workspace_bytes() > 0);

  const auto none = [&](const Layer& layer) {
    return mma_candidates(layer.forward(), options).empty() && mma_candidates(layer.data(), options).empty() &&
           mma_candidates(layer.weights(), options).empty();
  };
  CHECK(!none(layer(DType::f16, 2, 8, 16, 9, 9, {5, 2, 2})));
  CHECK(none(layer(DType::f32, 2, 8, 16, 9, 9, {3, 1, 1})));
  CHECK(none(layer(DType::bf16, 2, 12, 16, 9, 9, {3, 1, 1})));
  CHECK(none(layer(DType::bf16, 2, 8, 20, 9, 9, {3, 1, 1})));
  CHECK(none(layer(DType::bf16, 2, 8, 16, 9, 9, {7, 1, 3})));
  Layer rows = layer(DType::bf16, 2, 8, 16, 9, 9, {3, 1, 1});
  rows.x.layout = plain(rows.x.shape, DType::bf16);
  CHECK(none(rows));
  CHECK(mma_candidates(layer(DType::bf16, 2, 8, 16, 9, 9, {3, 3, 1}).data(), options).empty());
  Layer mixed = layer(DType::bf16, 2, 8, 16, 9, 9, {3, 1, 1});
  mixed.y = last(mixed.y.shape, DType::f32);
  CHECK(none(mixed));
}

}  // namespace dp::simt::test
