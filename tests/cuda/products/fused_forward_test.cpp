// NormConv2dForward on tensor cores against its unfused ops: y bit for bit, moments of the stored y against sums in
// long double. Every tile, both types, all orders of threads, cp.async modes and numbers of multiprocessors.
#include <algorithm>
#include <cmath>
#include <random>

#include "cuda/last.h"
#include "kernels/conv/cuda_mma.h"
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

NormConv2dForward layer(DType type, std::int64_t batch, std::int64_t in, std::int64_t out, std::int64_t height,
                        std::int64_t width, Window window) {
  const auto side = [&](std::int64_t size) {
    return (size + 2 * window.padding.h - window.kernel.h) / window.stride.h + 1;
  };
  return {last({batch, in, height, width}, type), last({out, in, window.kernel.h, window.kernel.h}, type),
          last({batch, out, side(height), side(width)}, type), window};
}

std::uint16_t bits_of(DType type, float value) {
  return type == DType::bf16 ? from_float<BFloat16>(value).bits : from_float<Float16>(value).bits;
}
double value_of(DType type, std::uint16_t bits) {
  return static_cast<double>(type == DType::bf16 ? to_float(BFloat16{bits}) : to_float(Float16{bits}));
}

template <typename T = float>
std::vector<T> randoms(std::int64_t count, T least, T most, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<T> values(least, most);
  std::vector<T> result(static_cast<std::size_t>(count));
  for (T& value : result) value = values(generator);
  return result;
}
Bits low(DType type, const std::vector<float>& values) {
  Bits bits;
  for (const float value : values) bits.push_back(bits_of(type, value));
  return bits;
}

struct Inputs {
  Bits x, w;
  std::vector<double> stats;
  std::vector<float> weight, bias;
};

Inputs inputs(const NormConv2dForward& d) {
  const std::int64_t channels = d.x.shape[1];
  Inputs in{low(d.x.type, randoms(d.x.shape.numel(), -1.f, 1.f, 1)),
            low(d.x.type, randoms(d.w.shape.numel(), -1.f, 1.f, 2)), randoms(1 + 2 * channels, -.4, .4, 3),
            randoms(channels, -2.f, 2.f, 4), randoms(channels, -.5f, .5f, 5)};
  in.stats[0] = 100;
  for (auto i = static_cast<std::size_t>(channels) + 1; i < in.stats.size(); ++i) in.stats[i] += 1.5;  // 1 / deviation
  return in;
}

struct Results {
  Bits y;
  std::vector<double> moments, stats;
  bool operator==(const Results& other) const = default;
};

void run(CudaOp& op, const TestStream& stream, const std::vector<void*>& args) {
  const DeviceArray<double> workspace(std::vector<double>(op.workspace_bytes() / sizeof(double) + 1, NAN));
  op.run_on(stream, args, workspace.get());
  stream.finish();
}

class Rig {
 public:
  Rig(const NormConv2dForward& d, const Inputs& in)
      : d_(d),
        x_(in.x),
        w_(in.w),
        y_(Bits(static_cast<std::size_t>(d.y.shape.numel()), 0xffff)),
        stats_(in.stats),
        moments_(std::vector<double>(static_cast<std::size_t>(1 + 2 * d.y.shape[1]), NAN)),
        stats_of_y_(moments_.values()),
        weight_(in.weight),
        bias_(in.bias) {}

  Results fused(const MmaChoice& choice, int multiprocessors) {
    const auto op = make_mma(d_, choice, multiprocessors);
    void *const stats = d_.norm ? stats_.get() : nullptr, *const moments = d_.moments ? moments_.get() : nullptr;
    void *const weight = d_.norm ? weight_.get() : nullptr, *const bias = d_.norm ? bias_.get() : nullptr;
    const auto once = [&] {
      run(*op, stream_,
          {x_.get(), stats, weight, bias, w_.get(), y_.get(), moments, d_.eps ? stats_of_y_.get() : nullptr});
      return results();
    };
    const Results first = once();
    CHECK(once() == first);  // the block counters have been reset
    return first;
  }
  Results unfused(const MmaChoice& choice) {
    const DeviceArray<std::uint16_t> z(x_.values());
    if (d_.norm)
      run(*make(BatchNormForward{d_.x, true, false}, CudaOpOptions{}), stream_,
          {x_.get(), stats_.get(), weight_.get(), bias_.get(), nullptr, z.get()});
    run(*make_mma(Conv2dForward{d_.x, d_.w, d_.y, d_.window, false, false}, choice), stream_,
        {z.get(), w_.get(), nullptr, y_.get()});
    if (d_.moments) run(*make(BatchNormMoments{d_.y}, CudaOpOptions{}), stream_, {y_.get(), moments_.get()});
    return results();
  }
  // Stats from moments, by a separate op.
  std::vector<double> merged(const std::vector<double>& moments) {
    const DeviceArray<double> from(moments);
    run(*make(BatchNormMerge{d_.y.shape[1], 1, *d_.eps}, CudaOpOptions{}), stream_, {from.get(), stats_of_y_.get()});
    return stats_of_y_.values();
  }

 private:
  Results results() const {
    return {y_.values(), d_.moments ? moments_.values() : std::vector<double>{},
            d_.eps ? stats_of_y_.values() : std::vector<double>{}};
  }

  NormConv2dForward d_;
  TestStream stream_;
  DeviceArray<std::uint16_t> x_, w_, y_;
  DeviceArray<double> stats_, moments_, stats_of_y_;
  DeviceArray<float> weight_, bias_;
};

// Error bound. Each deviation is rounded to float once, and eight of them (or of their squares) are added in float: at
// most 10 units of 2^-24, relative to the sum of magnitudes. Later steps are in double. So the squares are off by at
// most 16 units, with a margin for the error of the mean. The mean is off by at most 16 units of the deviation, plus
// the last bits of a double.
void check_moments(const std::vector<double>& moments, const Bits& y, const TensorDesc& desc) {
  const auto channels = static_cast<std::size_t>(desc.shape[1]), count = y.size() / channels;
  REQUIRE(moments.size() == 1 + 2 * channels);
  CHECK(moments[0] == static_cast<double>(count));
  std::size_t wrong = 0;
  for (std::size_t c = 0; c < channels; ++c) {
    long double sum = 0, squares = 0;
    for (std::size_t at = c; at < y.size(); at += channels) sum += value_of(desc.type, y[at]);
    const long double mean = sum / static_cast<long double>(count);
    for (std::size_t at = c; at < y.size(); at += channels)
      squares += (value_of(desc.type, y[at]) - mean) * (value_of(desc.type, y[at]) - mean);
    const long double deviation = std::sqrt(squares / static_cast<long double>(count));
    const long double mean_off = std::abs(moments[1 + c] - mean);
    const long double squares_off = std::abs(moments[1 + channels + c] - squares);
    wrong += !(mean_off <= 0x1p-20L * deviation + 0x1p-50L * std::abs(mean)) +
             !(squares_off <= 0x1p-20L * squares + 0x1p-80L * static_cast<long double>(count) * mean * mean);
  }
  CHECK(wrong == 0);
}

const Schedule kFirst{ThreadOrder::forward, AsyncCopy::eager};

enum class Fused { nothing, norm, moments, both };
const std::vector<Fused> kAll{Fused::nothing, Fused::norm, Fused::moments, Fused::both};

// Runs each schedule, and different numbers of multiprocessors.
void check(NormConv2dForward d, const Inputs& in, const std::vector<Fused>& fused,
           const std::vector<MmaTileKind>& tiles, const std::vector<Schedule>& orders) {
  INFO("x " << to_string(d.x.shape) << " w " << to_string(d.w.shape) << " " << to_string(d.x.type));
  for (const MmaTileKind tile : tiles)
    for (const Fused what : fused) {
      d.norm = what == Fused::norm || what == Fused::both, d.moments = what == Fused::moments || what == Fused::both;
      d.eps = d.moments ? std::optional(0.25) : std::nullopt;
      INFO("tile " << to_string(tile) << ", norm " << d.norm << ", moments " << d.moments);
      use(kFirst);
      const Results wanted = Rig(d, in).unfused({tile, 1});
      std::vector<Results> got;
      int multiprocessors = 1;
      for (const Schedule& order : orders) {
        use(order);
        got.push_back(Rig(d, in).fused({tile, 1}, multiprocessors++));
        CHECK(got.back() == got.front());
      }
      CHECK(got[0].y == wanted.y);
      if (!d.moments) continue;
      check_moments(got[0].moments, wanted.y, d.y);
      check_moments(wanted.moments, wanted.y, d.y);
      CHECK(got[0].stats == Rig(d, in).merged(got[0].moments));
    }
}
void check(const NormConv2dForward& d, const std::vector<Fused>& fused, const std::vector<MmaTileKind>& tiles,
           const std::vector<Schedule>& orders = {kFirst}) {
  check(d, inputs(d), fused, tiles, orders);
}

const std::vector<MmaTileKind> kTiles(std::begin(kMmaTileKinds), std::end(kMmaTileKinds));

}  // namespace

TEST_CASE("fused forward: odd shapes, strides and windows agree with the unfused ops for every tile in bf16 and f16",
          "[matrix]") {
  const FreshSimulation fresh;
  check(layer(DType::bf16, 3, 24, 72, 11, 9, {3, 1, 1}), kAll, kTiles);
  check(layer(DType::f16, 5, 72, 8, 15, 13, {1, 2, 0}), kAll, kTiles);
  check(layer(DType::f16, 2, 24, 136, 9, 7, {3, 2, 1}), {Fused::both}, kTiles);
  check(layer(DType::f16, 1, 8, 8, 6, 6, {5, 1, 2}), {Fused::both}, kTiles);
  check(layer(DType::bf16, 1, 16, 64, 1, 1, {3, 1, 1}), {Fused::both}, kTiles);
  CHECK(take_reports().empty());
}

TEST_CASE("fused forward: bits do not depend on the order of threads or the form of cp.async") {
  const FreshSimulation fresh;
  check(layer(DType::bf16, 2, 40, 24, 9, 8, {3, 1, 1}), {Fused::both}, kTiles, schedules());
  check(layer(DType::bf16, 2, 64, 72, 9, 8, {3, 1, 1}), {Fused::both},
        {MmaTileKind::resident, MmaTileKind::wgmma_narrow, MmaTileKind::wgmma_wide},
        {kFirst, {ThreadOrder::random, AsyncCopy::random, 2}});
  CHECK(take_reports().empty());
}

TEST_CASE("fused forward: resident cells agree with the unfused ops for any number of blocks", "[matrix]") {
  const FreshSimulation fresh;
  check(layer(DType::bf16, 7, 64, 64, 9, 11, {3, 1, 1}), {Fused::both}, {MmaTileKind::resident}, schedules());
  check(layer(DType::f16, 1, 64, 24, 5, 7, {3, 1, 1}), kAll, {MmaTileKind::resident});
  check(layer(DType::f16, 2, 64, 72, 3, 47, {3, 1, 1}), kAll, {MmaTileKind::resident});
  CHECK(take_reports().empty());
}

TEST_CASE("fused forward: wgmma with cells from registers agrees with the unfused ops for any number of blocks",
          "[matrix]") {
  const FreshSimulation fresh;
  check(layer(DType::bf16, 7, 64, 64, 9, 11, {3, 1, 1}), {Fused::both}, {MmaTileKind::wgmma_narrow}, schedules());
  check(layer(DType::f16, 3, 64, 136, 9, 11, {3, 1, 1}), kAll, {MmaTileKind::wgmma_wide});
  check(layer(DType::bf16, 20, 128, 72, 4, 4, {3, 1, 1}), {Fused::both}, {MmaTileKind::wgmma_wide}, schedules());
  CHECK(take_reports().empty());
}

TEST_CASE("fused forward: moments of many parts are merged in groups", "[matrix]") {
  const FreshSimulation fresh;
  check(layer(DType::bf16, 5, 8, 8, 67, 64, {1, 1, 0}), {Fused::moments}, {MmaTileKind::small});
  // Two columns of channels, the second one partly filled; another block order.
  check(layer(DType::f16, 5, 8, 72, 67, 64, {1, 1, 0}), {Fused::moments}, {MmaTileKind::small},
        {kFirst, {ThreadOrder::random, AsyncCopy::eager}});
  CHECK(take_reports().empty());
}

TEST_CASE("fused forward: moments of equal values, and of values far from zero that differ little, are accurate") {
  const FreshSimulation fresh;
  for (const DType type : {DType::bf16, DType::f16}) {
    const NormConv2dForward d = layer(type, 3, 16, 16, 23, 9, {1, 1, 0});
    Inputs in = inputs(d);
    const float far = type == DType::bf16 ? 193 : 1537;  // neighbours are 1 apart
    for (std::size_t i = 0; i < in.x.size(); ++i)
      in.x[i] = bits_of(type, i % 16 == 5 ? far : far + static_cast<float>(i * i / 16 % 3));
    for (std::size_t i = 0; i < in.w.size(); ++i) in.w[i] = bits_of(type, i % 17 == 0 ? 1 : 0);  // y = x
    check(d, in, {Fused::moments}, kTiles, {kFirst});
  }
  CHECK(take_reports().empty());
}

TEST_CASE("fused forward: NaN stays NaN") {
  const FreshSimulation fresh;
  NormConv2dForward d = layer(DType::bf16, 1, 8, 8, 3, 3, {3, 1, 1});
  d.norm = true;
  Inputs in = inputs(d);
  in.x[0] = bits_of(DType::bf16, NAN);
  const Bits y = Rig(d, in).fused({MmaTileKind::small, 1}, 1).y;
  CHECK(std::isnan(value_of(DType::bf16, y[0])));
  CHECK(!std::isnan(value_of(DType::bf16, y.back())));
  CHECK(y == Rig(d, in).unfused({MmaTileKind::small, 1}).y);
}

TEST_CASE("fused forward: candidates are offered for the same problems as plain convolutions") {
  const CudaOpOptions options{.multiprocessors = 132, .compute_capability = 90, .shared_memory = 227 * 1024};
  NormConv2dForward d = layer(DType::bf16, 512, 64, 64, 32, 32, {3, 1, 1});
  const auto plain_candidates = [&] {
    return mma_candidates(Conv2dForward{d.x, d.w, d.y, d.window, false, false}, options);
  };
  d.norm = d.moments = true;
  const std::vector<Candidate> candidates = mma_candidates(d, options), plain_ones = plain_candidates();
  REQUIRE(candidates.size() == plain_ones.size());
  CHECK(candidates.front().name == "own:mma resident fused");
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    CHECK(candidates[i].name == plain_ones[i].name + " fused");
    const auto op = candidates[i].make();
    CHECK(op->implementation() == candidates[i].name);
    CHECK(op->workspace_bytes() > 0);
    CHECK(op->workspace_bytes() < std::size_t{16} << 20);  // y has 64 MiB
  }
  CudaOpOptions less = options;  // enough for resident cells, but not for the statistics
  less.shared_memory = 154 * 1024;
  while (mma_candidates(Conv2dForward{d.x, d.w, d.y, d.window, false, false}, less).front().name != "own:mma resident")
    less.shared_memory += 64;
  CHECK(mma_candidates(d, less).front().name != "own:mma resident fused");
  d.norm = false;
  CHECK(mma_candidates(d, less).front().name == "own:mma resident fused");
  d.moments = false;
  CHECK(candidates.front().make()->tensors().size() == 3);
  CHECK(mma_candidates(d, options).front().make()->workspace_bytes() == 0);

  CudaOpOptions hopper = options;
  hopper.wgmma = true;
  d = layer(DType::bf16, 512, 128, 128, 16, 16, {3, 1, 1});
  d.norm = d.moments = true;
  CHECK(mma_candidates(d, hopper).back().name == "own:wgmma 256x128 fused");
  CHECK(mma_candidates(d, hopper).back().make()->implementation() == "own:wgmma 256x128 fused");
  CHECK(mma_candidates(d, hopper).size() == mma_candidates(d, options).size() + 1);

  d = layer(DType::bf16, 1, 2048, 8, 4, 4, {1, 1, 0});
  CHECK(!mma_candidates(d, options).empty());
  d.norm = true;
  CHECK(mma_candidates(d, options).empty());
  CHECK(mma_candidates(layer(DType::f32, 2, 8, 16, 9, 9, {3, 1, 1}), options).empty());
  CHECK(mma_candidates(layer(DType::f16, 2, 12, 16, 9, 9, {3, 1, 1}), options).empty());

  const auto op = make_mma(layer(DType::bf16, 1, 8, 8, 2, 2, {1, 1, 0}), {MmaTileKind::small, 1});
  const FreshSimulation fresh;
  const TestStream stream;
  const DeviceArray<std::uint16_t> x(64), y(64);
  CHECK_THROWS_AS(
      op->run_on(stream, std::vector<void*>{x.get() + 1, nullptr, nullptr, nullptr, x.get(), y.get(), nullptr},
                 nullptr),
      Error);
}

}  // namespace dp::simt::test
