// Gradients on tensor cores fused with batch normalisation, against their unfused ops with the same tile: dz and dw bit
// for bit, sums up to the order of additions. Both 16-bit types, every tile, and the same bits in every order of
// threads.
#include <algorithm>
#include <cmath>
#include <cstring>
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
using Device = DeviceArray<std::uint16_t>;

double value_of(DType type, std::uint16_t bits) {
  return static_cast<double>(type == DType::bf16 ? to_float(BFloat16{bits}) : to_float(Float16{bits}));
}

// x: the input of the normalisation before the convolution. dx and z have its shape.
struct Layer {
  TensorDesc x, w, y;
  Window window;

  NormConv2dBackwardData data(bool relu, bool add, bool renormalize) const {
    return {y, w, x, window, relu, add, renormalize};
  }
  NormConv2dBackwardWeights weights() const { return {x, y, last(w.shape, DType::f32), window}; }
};
Layer layer(DType type, std::int64_t batch, std::int64_t in, std::int64_t out, std::int64_t height, std::int64_t width,
            Window window) {
  const auto side = [&](std::int64_t size) {
    return (size + 2 * window.padding.h - window.kernel.h) / window.stride.h + 1;
  };
  return {last({batch, in, height, width}, type), last({out, in, window.kernel.h, window.kernel.h}, type),
          last({batch, out, side(height), side(width)}, type), window};
}

struct Inputs {
  Bits x, w, dy, dy2, y;
  std::vector<double> stats;
  std::vector<float> weight, bias;

  explicit Inputs(const Layer& l) {
    std::mt19937 generator(7);
    std::uniform_real_distribution<float> values(-1, 1);
    const auto bits = [&](const TensorDesc& t) {
      Bits result(static_cast<std::size_t>(t.shape.numel()));
      for (auto& b : result)
        b = t.type == DType::bf16 ? from_float<BFloat16>(values(generator)).bits
                                  : from_float<Float16>(values(generator)).bits;
      return result;
    };
    x = bits(l.x), w = bits(l.w), dy = bits(l.y), dy2 = bits(l.x), y = bits(l.x);
    const auto channels = static_cast<std::size_t>(l.x.shape[1]);
    stats.push_back(static_cast<double>(x.size() / channels));
    for (std::size_t c = 0; c < channels; ++c) stats.push_back(0.3 * static_cast<double>(values(generator)));
    for (std::size_t c = 0; c < channels; ++c) stats.push_back(1.5 + static_cast<double>(values(generator)));
    for (std::size_t c = 0; c < channels; ++c) {
      weight.push_back(1.5f * values(generator));
      bias.push_back(0.5f + values(generator));
    }
  }
};

// All arguments of a gradient op on the device. Results are filled with NaN.
class Rig {
 public:
  Rig(const Layer& l, const Inputs& in)
      : layer_(l),
        x_(in.x),
        w_(in.w),
        dy_(in.dy),
        dy2_(in.dy2),
        y_(in.y),
        dz_(Bits(in.x.size(), 0xffff)),
        stats_(in.stats),
        sums_(std::vector<double>(2 * in.weight.size(), NAN)),
        weight_(in.weight),
        bias_(in.bias),
        dweight_(std::vector<float>(in.weight.size(), NAN)),
        dbias_(std::vector<float>(in.weight.size(), NAN)),
        dw_(std::vector<float>(in.w.size(), NAN)) {}

  struct Gradient {
    Bits dz;
    std::vector<double> sums;
    std::vector<float> dweight, dbias;
    bool operator==(const Gradient&) const = default;
    bool has_bits_of(const Gradient& other) const {  // NaN equals itself
      const auto same = [](const auto& a, const auto& b) {
        return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0;
      };
      return same(dz, other.dz) && same(sums, other.sums) && same(dweight, other.dweight) && same(dbias, other.dbias);
    }
  };
  Gradient gradient() const { return {dz_.values(), sums_.values(), dweight_.values(), dbias_.values()}; }
  std::vector<std::uint32_t> dw() const {
    const std::vector<float> values = dw_.values();
    std::vector<std::uint32_t> bits(values.size());
    std::memcpy(bits.data(), values.data(), values.size() * sizeof(float));
    return bits;
  }

  void fused(const NormConv2dBackwardData& d, const MmaChoice& choice, int multiprocessors) {
    const auto op = make_mma(d, choice, multiprocessors);
    const auto once = [&] {
      run(*op, {dy_, w_, d.add ? dy2_.get() : nullptr, x_, d.relu && !d.renormalize ? y_.get() : nullptr, stats_,
                d.renormalize ? weight_.get() : nullptr, d.renormalize ? bias_.get() : nullptr, sums_, dweight_, dbias_,
                dz_});
      return gradient();
    };
    const Gradient first = once();
    CHECK(once().has_bits_of(first));  // the block counters have been reset
  }
  void unfused(const NormConv2dBackwardData& d, const MmaChoice& choice) {
    if (d.renormalize) normalize(y_);
    run(*make_mma(Conv2dBackwardData{d.dy, d.w, d.dx, d.window}, choice), {dy_, w_, dz_});
    run(*make(BatchNormBackwardSums{d.dx, d.relu}, CudaOpOptions{}),
        {dz_, d.add ? dy2_.get() : nullptr, x_, d.relu ? y_.get() : nullptr, stats_, sums_, dweight_, dbias_, dz_});
  }
  void fused(const NormConv2dBackwardWeights& d, const MmaChoice& choice) {
    run(*make_mma(d, choice), {x_, stats_, weight_, bias_, dy_, dw_});
  }
  void unfused(const NormConv2dBackwardWeights& d, const MmaChoice& choice) {
    normalize(y_);
    run(*make_mma(Conv2dBackwardWeights{d.x, d.dy, d.dw, d.window, false}, choice), {y_, dy_, dw_, nullptr});
  }

 private:
  void normalize(const Device& to) {
    run(*make(BatchNormForward{layer_.x, true, false}, CudaOpOptions{}), {x_, stats_, weight_, bias_, nullptr, to});
  }
  void run(CudaOp& op, const std::vector<void*>& args) const {
    const DeviceArray<double> workspace(std::vector<double>(op.workspace_bytes() / sizeof(double) + 1, NAN));
    op.run_on(stream_, args, workspace.get());
    stream_.finish();
  }

  Layer layer_;
  TestStream stream_;
  Device x_, w_, dy_, dy2_, y_, dz_;
  DeviceArray<double> stats_, sums_;
  DeviceArray<float> weight_, bias_, dweight_, dbias_, dw_;
};

// Error bound. Both versions add four values at a time in float (at most 4 units of 2^-24 of the sum of magnitudes) and
// the rest in double. So two orders differ by at most 8 units. The rounded dz serves as the magnitudes. dweight and
// dbias are rounded once more.
void check_sums(const Layer& l, const Inputs& in, const Rig::Gradient& got, const Rig::Gradient& wanted) {
  const std::size_t channels = in.weight.size();
  std::vector<double> gradients(channels), products(channels);
  for (std::size_t i = 0; i < wanted.dz.size(); ++i) {
    const std::size_t c = i % channels;
    const double gradient = std::abs(value_of(l.x.type, wanted.dz[i]));
    gradients[c] += gradient;
    products[c] += gradient * std::abs(value_of(l.x.type, in.x[i]) - in.stats[1 + c]);
  }
  std::size_t wrong = 0;
  for (std::size_t c = 0; c < channels; ++c) {
    const auto close = [&](double a, double b, double magnitude, double rounding) {
      return std::abs(a - b) <= 8 * 0x1p-24 * 1.01 * magnitude + rounding * std::abs(b);
    };
    const double product = products[c] * in.stats[1 + channels + c];
    wrong += !close(got.sums[c], wanted.sums[c], gradients[c], 0);
    wrong += !close(got.sums[channels + c], wanted.sums[channels + c], product, 0);
    wrong += !close(static_cast<double>(got.dbias[c]), static_cast<double>(wanted.dbias[c]), gradients[c], 0x1p-23);
    wrong += !close(static_cast<double>(got.dweight[c]), static_cast<double>(wanted.dweight[c]), product, 0x1p-23);
  }
  CHECK(wrong == 0);
}

struct Mode {
  bool relu, add, renormalize;
};
const std::vector<Mode> kAllModes{{false, false, false}, {false, true, false}, {true, false, false},
                                  {true, true, false},   {true, false, true},  {true, true, true}};

// Runs in the next `count` of all schedules, with several numbers of multiprocessors. All must give the same bits.
class Turns {
 public:
  explicit Turns(std::size_t count) : count_(count) {}
  template <typename Run>
  auto same_in_all(Run run) {
    auto first = in_next(run, 0);
    for (std::size_t i = 1; i < count_; ++i) CHECK(in_next(run, i) == first);
    return first;
  }

 private:
  template <typename Run>
  auto in_next(Run run, std::size_t turn) {
    use(schedules()[turn_++ % schedules().size()]);
    return run(static_cast<int>(turn) * 2 + 1);
  }
  std::size_t count_, turn_ = 0;
};

std::string named(const Layer& l, MmaTileKind tile) {
  return "x " + to_string(l.x.shape) + " w " + to_string(l.w.shape) + (l.x.type == DType::bf16 ? " bf16" : " f16") +
         " tile " + to_string(tile);
}

void check_data(const Layer& l, MmaTileKind tile, const std::vector<Mode>& modes, Turns turns) {
  const Inputs in(l);
  for (const Mode& mode : modes) {
    INFO(named(l, tile) << (mode.relu ? " relu" : "") << (mode.add ? " add" : "")
                        << (mode.renormalize ? " again" : ""));
    const NormConv2dBackwardData d = l.data(mode.relu, mode.add, mode.renormalize);
    Rig rig(l, in);
    rig.unfused(d, {tile, 1});
    const Rig::Gradient got = turns.same_in_all([&](int multiprocessors) {
      Rig own(l, in);
      own.fused(d, {tile, 1}, multiprocessors);
      return own.gradient();
    });
    CHECK(got.dz == rig.gradient().dz);
    check_sums(l, in, got, rig.gradient());
  }
}

void check_weights(const Layer& l, MmaTileKind tile, const std::vector<int>& splits, Turns turns) {
  const Inputs in(l);
  for (const int split : splits) {
    INFO(named(l, tile) << " splits " << split);
    Rig rig(l, in);
    rig.unfused(l.weights(), {tile, split});
    CHECK(turns.same_in_all([&](int) {
      Rig own(l, in);
      own.fused(l.weights(), {tile, split});
      return own.dw();
    }) == rig.dw());
  }
}

}  // namespace

TEST_CASE("fused backward: data gradients agree with the unfused ops for every tile in bf16 and f16", "[matrix]") {
  const FreshSimulation fresh;
  for (const MmaTileKind tile : kMmaTileKinds) {
    check_data(layer(DType::bf16, 3, 72, 24, 5, 7, {3, 1, 1}), tile, kAllModes, Turns(1));
    check_data(layer(DType::f16, 2, 136, 8, 7, 5, {3, 2, 1}), tile, kAllModes, Turns(1));
  }
  check_data(layer(DType::f16, 2, 8, 16, 6, 6, {5, 1, 2}), MmaTileKind::small, kAllModes, Turns(1));
  CHECK(take_reports().empty());
}

TEST_CASE("fused backward: data gradients with stride 2 agree with the unfused ops") {
  const FreshSimulation fresh;
  check_data(layer(DType::bf16, 2, 24, 16, 9, 6, {1, 2, 0}), MmaTileKind::small, kAllModes, Turns(1));
  check_data(layer(DType::f16, 3, 16, 8, 1, 9, {3, 2, 1}), MmaTileKind::middle, {{true, true, true}}, Turns(2));
}

TEST_CASE("fused backward: data gradients with resident cells agree with the unfused ops", "[matrix]") {
  const FreshSimulation fresh;
  check_data(layer(DType::bf16, 3, 64, 64, 9, 11, {3, 1, 1}), MmaTileKind::resident, kAllModes, Turns(2));
  check_data(layer(DType::f16, 13, 72, 64, 7, 7, {3, 1, 1}), MmaTileKind::resident, {{true, true, true}}, Turns(3));
  CHECK(take_reports().empty());
}

TEST_CASE("fused backward: data gradients by wgmma with cells from registers agree with the unfused ops", "[matrix]") {
  const FreshSimulation fresh;
  check_data(layer(DType::bf16, 3, 72, 64, 9, 11, {3, 1, 1}), MmaTileKind::wgmma_wide, kAllModes, Turns(2));
  check_data(layer(DType::f16, 20, 136, 128, 4, 4, {3, 1, 1}), MmaTileKind::wgmma_wide, {{true, true, true}}, Turns(3));
  check_data(layer(DType::f16, 13, 64, 64, 7, 7, {3, 1, 1}), MmaTileKind::wgmma_narrow, {{true, true, true}},
             Turns(schedules().size()));
  CHECK(take_reports().empty());
}

TEST_CASE("fused backward: sums over more tiles than one block adds are correct", "[matrix]") {
  const FreshSimulation fresh;
  check_data(layer(DType::bf16, 8, 8, 8, 33, 33, {1, 1, 0}), MmaTileKind::small, {{true, true, true}}, Turns(2));
  check_data(layer(DType::f16, 8, 72, 8, 33, 33, {1, 1, 0}), MmaTileKind::small, {{true, true, true}}, Turns(2));
  CHECK(take_reports().empty());
}

TEST_CASE("fused backward: NaN and values that round to zero have no gradient") {
  const FreshSimulation fresh;
  const Layer l = layer(DType::f16, 1, 16, 8, 6, 6, {3, 1, 1});
  Inputs in(l);
  in.x[5] = 0x7e00;
  in.weight[3] = in.bias[3] = 4e-9f;  // results are at most 2^-26
  const NormConv2dBackwardData d = l.data(true, false, true);
  Rig fused(l, in), unfused(l, in);
  fused.fused(d, {MmaTileKind::small, 1}, 1);
  unfused.unfused(d, {MmaTileKind::small, 1});
  const Rig::Gradient got = fused.gradient();
  CHECK(got.dz == unfused.gradient().dz);
  CHECK(got.dz[5] == 0);
  for (std::size_t i = 3; i < got.dz.size(); i += 16) CHECK(got.dz[i] == 0);
  for (std::size_t c = 0; c < 16; ++c) CHECK(std::isnan(got.sums[16 + c]) == (c == 5));
}

TEST_CASE("fused backward: weight gradients agree with the unfused ops for every tile in bf16 and f16") {
  const FreshSimulation fresh;
  for (const MmaTileKind tile : kMmaTileKinds) {
    check_weights(layer(DType::bf16, 3, 24, 72, 5, 7, {3, 1, 1}), tile, {1, 3}, Turns(1));
    check_weights(layer(DType::f16, 2, 72, 8, 7, 5, {3, 2, 1}), tile, {1, 2}, Turns(1));
  }
  check_weights(layer(DType::f16, 2, 40, 16, 5, 5, {1, 2, 0}), MmaTileKind::small, {1}, Turns(1));
  check_weights(layer(DType::bf16, 1, 8, 8, 6, 6, {5, 1, 2}), MmaTileKind::small, {7}, Turns(1));
  CHECK(take_reports().empty());
}

TEST_CASE("fused backward: weight gradients with resident cells agree with the unfused ops") {
  const FreshSimulation fresh;
  check_weights(layer(DType::bf16, 3, 64, 64, 9, 11, {3, 1, 1}), MmaTileKind::resident, {1, 2}, Turns(2));
  check_weights(layer(DType::f16, 1, 128, 64, 3, 40, {3, 1, 1}), MmaTileKind::resident, {1, 5}, Turns(2));
  CHECK(take_reports().empty());
}

TEST_CASE("fused backward: bits do not depend on the order of threads or the form of cp.async") {
  const FreshSimulation fresh;
  const Turns all(schedules().size());
  const Layer l = layer(DType::bf16, 1, 24, 64, 9, 8, {3, 1, 1});
  for (const MmaTileKind tile : kMmaTileKinds) {
    check_data(l, tile, {{true, true, true}}, all);
    check_weights(l, tile, {2}, all);
  }
  check_data(layer(DType::f16, 1, 24, 16, 6, 11, {3, 2, 0}), MmaTileKind::small, {{true, true, false}}, all);
  const Layer stays = layer(DType::f16, 2, 64, 64, 14, 11, {3, 1, 1});
  check_data(stays, MmaTileKind::resident, {{true, true, true}}, all);
  check_weights(stays, MmaTileKind::resident, {1}, all);
  for (const MmaTileKind tile : {MmaTileKind::wgmma_narrow, MmaTileKind::wgmma_wide})
    check_data(layer(DType::bf16, 2, 72, 64, 5, 7, {3, 1, 1}), tile, {{true, true, true}}, Turns(2));
  CHECK(take_reports().empty());
}

TEST_CASE("fused backward: candidates are offered for the same problems as plain gradients, in the same order") {
  CudaOpOptions options{.multiprocessors = 132, .compute_capability = 90, .shared_memory = 227 * 1024};
  const Layer l = layer(DType::bf16, 512, 64, 64, 32, 32, {3, 1, 1});
  const auto names = [&](const OpDesc& desc) {
    std::vector<std::string> all;
    for (const Candidate& candidate : mma_candidates(desc, options)) {
      all.push_back(candidate.name);
      CHECK(candidate.make()->implementation() == candidate.name);
    }
    return all;
  };
  const auto plain = [&](const OpDesc& desc) {
    std::vector<std::string> all;
    for (const Candidate& candidate : mma_candidates(desc, options)) all.push_back(candidate.name + " fused");
    return all;
  };
  const auto same = [&](const Layer& layer) {
    const Conv2dBackwardData data{layer.y, layer.w, layer.x, layer.window};
    const Conv2dBackwardWeights weights{layer.x, layer.y, layer.weights().dw, layer.window, false};
    CHECK(names(layer.data(true, true, false)) == plain(data));
    CHECK(names(layer.weights()) == plain(weights));
  };
  same(l);
  CHECK(names(l.data(true, false, true)).front() == "own:mma resident fused");
  same(layer(DType::f16, 64, 128, 256, 16, 16, {3, 2, 1}));
  CudaOpOptions hopper = options;
  hopper.wgmma = true;
  const Layer wide = layer(DType::bf16, 512, 128, 128, 16, 16, {3, 1, 1});
  CHECK(mma_candidates(wide.data(true, true, false), hopper).back().name == "own:wgmma 256x128 fused");
  same(layer(DType::f32, 2, 8, 16, 9, 9, {3, 1, 1}));
  same(layer(DType::bf16, 2, 8, 12, 9, 9, {3, 1, 1}));
  CHECK(names(layer(DType::f32, 2, 8, 16, 9, 9, {3, 1, 1}).weights()).empty());
  // The rows of one width just fit, but not together with the statistics of a normalisation.
  while (names(l.data(true, false, true)).front() == "own:mma resident fused") options.shared_memory -= 256;
  CHECK(mma_candidates(Conv2dBackwardData{l.y, l.w, l.x, l.window}, options).front().name == "own:mma resident");
}

}  // namespace dp::simt::test
