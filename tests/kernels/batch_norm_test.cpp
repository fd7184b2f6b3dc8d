#include "kernels/norm_calls.h"

#include <cmath>

#include "support/catch.h"
#include "support/tensor_errors.h"

namespace {

using namespace dp;
using namespace dp::test;

template <typename Check>
void in_both_layouts(const Check& check) {
  for (const DeviceKind kind : tested_kinds())
    for (const bool preferred : {false, true}) {
      OpRig rig(kind);
      INFO(to_string(Device{kind, 0}) << (preferred ? " in the layout it prefers" : " row-major"));
      check(rig, preferred);
    }
}

double largest_relative_error(const Doubles& actual, const Doubles& expected, double floor) {
  REQUIRE(actual.size() == expected.size());
  double largest = 0;
  for (std::size_t i = 0; i < actual.size(); ++i)
    largest = larger_error(largest, std::abs(actual[i] - expected[i]) / std::max(std::abs(expected[i]), floor));
  return largest;
}

void check_equal(const NormResult& actual, const NormResult& expected) {
  CHECK(largest_relative_error(actual.mean, expected.mean, 1) <= kNormTolerance);
  CHECK(largest_relative_error(actual.variance, expected.variance, 1e-3) <= kNormTolerance);
  CHECK(relative_error(actual.y, expected.y) <= kNormTolerance);
  CHECK(relative_error(actual.dz, expected.dz) <= kNormTolerance);
  CHECK(relative_error(actual.dx, expected.dx) <= 2 * kNormTolerance);
  CHECK(relative_error(actual.dweight, expected.dweight) <= 2 * kNormTolerance);
  CHECK(relative_error(actual.dbias, expected.dbias) <= 2 * kNormTolerance);
}

// Values that are exact in float32, around `mean`.
HostTensor around(double mean, double deviation, const Shape& shape, Random& random) {
  HostTensor x = random_tensor(shape, random);
  for (double& value : x.values) value = static_cast<float>(mean + deviation * std::sqrt(3.0) * value);
  return x;
}

}  // namespace

TEST_CASE("batch normalisation equals its definition with ReLU, addend and second gradient in every layout") {
  Random random(51, RandomUse::synthetic);
  const Shape shapes[] = {{4, 20, 5, 7},   {3, 16, 1, 1},  {3, 1, 9, 4},    {1, 33, 6, 6},  {37, 8, 3, 3}, {5, 3, 1, 1},
                          {2, 17, 20, 19}, {1, 5, 45, 47}, {2, 68, 20, 19}, {3, 132, 8, 9}, {2, 3, 47, 45}};
  int turn = 0;
  for (const Shape& shape : shapes)
    for (const bool relu : {false, true}) {
      const bool add = ++turn % 2 == 0, second = turn % 3 != 0;
      const NormCase norm = random_norm(shape, relu, add, second, random);
      const NormResult expected = naive_batch_norm(norm);
      in_both_layouts([&](OpRig& rig, bool preferred) {
        INFO(to_string(shape) << " relu " << relu << " add " << add << " second " << second);
        check_equal(batch_norm(rig, norm, {shape[0]}, preferred), expected);
      });
    }
}

TEST_CASE("the statistics of two or three parts, also with an empty one, are those of the whole batch") {
  Random random(52, RandomUse::synthetic);
  for (const bool relu : {false, true}) {
    const NormCase norm = random_norm({7, 20, 6, 5}, relu, true, true, random);
    const NormResult expected = naive_batch_norm(norm);
    in_both_layouts([&](OpRig& rig, bool preferred) {
      for (const std::vector<std::int64_t>& parts : {std::vector<std::int64_t>{4, 3}, {1, 4, 2}, {6, 1}})
        check_equal(batch_norm(rig, norm, parts, preferred), expected);
    });
  }
}

TEST_CASE("the variance stays accurate for means a thousand deviations from zero and for outliers") {
  Random random(53, RandomUse::synthetic);
  HostTensor far = around(100, 0.1, {8, 17, 16, 13}, random), outlier = random_tensor({4, 5, 20, 30}, random);
  for (std::int64_t i = 0; i < 4 * 5; ++i) outlier.values[static_cast<std::size_t>(i * 600)] = 4096;
  for (const HostTensor& x : {far, outlier}) {
    const std::int64_t channels = x.shape[1];
    const NormResult expected =
        naive_batch_norm({.x = x, .weight = zeros({channels}), .bias = zeros({channels}), .dy = zeros(x.shape)});
    in_both_layouts([&](OpRig& rig, bool preferred) {
      const Doubles moments = batch_norm_moments(rig, x, preferred ? rig.preferred(x.shape) : rig.plain(x.shape));
      const double count = moments[0];
      CHECK(count == static_cast<double>(x.shape.numel() / channels));
      for (std::size_t c = 0; c < static_cast<std::size_t>(channels); ++c) {
        // An error of the mean matters relative to the standard deviation.
        CHECK(std::abs(moments[1 + c] - expected.mean[c]) <= 0x1p-20 * std::sqrt(expected.variance[c]));
        CHECK(moments[1 + static_cast<std::size_t>(channels) + c] / count ==
              Approx(expected.variance[c]).epsilon(1e-6));
      }
    });
  }
}

// The CUDA kernel sums squared deviations from a pivot. If the pivot is an outlier, the squares are hundreds of times
// the variance, and their rounding error of 2^-24 grows likewise.
TEST_CASE("the variance has four digits even if all values that the pivot is chosen from are outliers") {
  Random random(59, RandomUse::synthetic);
  HostTensor x = random_tensor({4, 5, 20, 30}, random);
  for (std::size_t channel = 0; channel < 5; ++channel)
    for (const std::size_t part : {16, 48, 81}) {  // pivots_of() in norm/cuda_reduce.cu
      const std::size_t row = 2400 * part / 97;
      x.values[(row / 600 * 5 + channel) * 600 + row % 600] = 4096;
    }
  const NormResult expected =
      naive_batch_norm({.x = x, .weight = zeros({5}), .bias = zeros({5}), .dy = zeros(x.shape)});
  in_both_layouts([&](OpRig& rig, bool preferred) {
    const Doubles moments = batch_norm_moments(rig, x, preferred ? rig.preferred(x.shape) : rig.plain(x.shape));
    for (std::size_t c = 0; c < 5; ++c) {
      CHECK(moments[1 + c] == Approx(expected.mean[c]).epsilon(1e-5));
      CHECK(moments[6 + c] / 2400 == Approx(expected.variance[c]).epsilon(1e-4));
    }
  });
}

TEST_CASE("output and gradient have the accuracy of float32 for a large mean") {
  Random random(54, RandomUse::synthetic);
  NormCase norm = random_norm({6, 20, 8, 9}, false, false, false, random);
  norm.x = around(100, 0.1, norm.x.shape, random);
  const NormResult expected = naive_batch_norm(norm);
  in_both_layouts([&](OpRig& rig, bool preferred) { check_equal(batch_norm(rig, norm, {2, 4}, preferred), expected); });
}

TEST_CASE("a batch normalisation without weights gives the bits of weights of one and biases of zero") {
  Random random(60, RandomUse::synthetic);
  for (const Shape& shape : {Shape{3, 20, 6, 5}, Shape{5, 3, 4, 1}}) {
    const NormCase norm = random_norm(shape, false, false, false, random);
    HostTensor ones = zeros({shape[1]});
    std::fill(ones.values.begin(), ones.values.end(), 1.0);
    in_both_layouts([&](OpRig& rig, bool preferred) {
      const kernels::Layout layout = preferred ? rig.preferred(shape) : rig.plain(shape);
      Doubles stats;
      batch_norm_moments(rig, norm.x, layout, norm.eps, &stats);
      const auto forward = [&](const HostTensor& weight, const HostTensor& bias) {
        return batch_norm_forward(rig, norm.x, stats, weight, bias, nullptr, false, layout).values;
      };
      CHECK(forward({}, {}) == forward(ones, zeros({shape[1]})));
      const auto sums = [&](bool affine) {
        return batch_norm_backward_sums(rig, norm.dy, nullptr, norm.x, nullptr, stats, Dz::nowhere, layout, affine)
            .sums;
      };
      CHECK(sums(false) == sums(true));
      const auto backward = [&](const HostTensor& weight) {
        return batch_norm_backward(rig, norm.dy, norm.x, nullptr, stats, weight, sums(true), false, layout).values;
      };
      CHECK(backward({}) == backward(ones));
    });
  }
}

TEST_CASE("a single value normalises to the bias and passes no gradient") {
  Random random(58, RandomUse::synthetic);
  const NormCase norm = random_norm({1, 20, 1, 1}, false, false, false, random);
  in_both_layouts([&](OpRig& rig, bool preferred) {
    const NormResult result = batch_norm(rig, norm, {1}, preferred);
    CHECK(relative_error({norm.bias.shape, result.y.values}, norm.bias) <= kNormTolerance);
    for (const double dx : result.dx.values) CHECK(std::abs(dx) < 1e-4);  // weight / sqrt(eps) is up to 316
    for (const double dweight : result.dweight.values) CHECK(std::abs(dweight) < 1e-6);
  });
}

TEST_CASE("constant channels normalise to the bias") {
  Random random(55, RandomUse::synthetic);
  NormCase norm = random_norm({5, 9, 7, 10}, false, false, false, random);
  for (double& value : norm.x.values) value = static_cast<float>(0.1);
  in_both_layouts([&](OpRig& rig, bool preferred) {
    const NormResult result = batch_norm(rig, norm, {5}, preferred);
    for (std::size_t i = 0; i < result.y.values.size(); ++i)
      CHECK(result.y.values[i] == Approx(norm.bias.values[i / 70 % 9]).epsilon(1e-6).margin(1e-6));
  });
}

TEST_CASE("merging skips empty parts in any position and accepts parts of one value") {
  // Two channels with values 1, 2, 4, 5 and 10, 10, 20, 40, in parts of 1 and 3 values between empty ones.
  const Doubles empty(5, 0.0), one{1, 1, 10, 0, 0}, rest{3, 11.0 / 3, 70.0 / 3, 14.0 / 3, 1400.0 / 3};
  const auto joined = [](std::initializer_list<Doubles> parts) {
    Doubles all;
    for (const Doubles& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
  };
  for (const Doubles& moments :
       {joined({one, rest}), joined({empty, one, empty, rest, empty}), joined({rest, empty, one})})
    in_both_layouts([&](OpRig& rig, bool) {
      const int parts = static_cast<int>(moments.size() / 5);
      const Doubles stats = batch_norm_merge(rig, {.channels = 2, .parts = parts, .eps = 0.5}, moments);
      CHECK(stats[0] == 4);
      CHECK(stats[1] == Approx(3).epsilon(1e-14));
      CHECK(stats[2] == Approx(20).epsilon(1e-14));
      CHECK(stats[3] == Approx(1 / std::sqrt(2.5 + 0.5)).epsilon(1e-14));
      CHECK(stats[4] == Approx(1 / std::sqrt(150 + 0.5)).epsilon(1e-14));
    });
}

TEST_CASE("merging stays accurate for parts whose means are a million deviations from zero") {
  const Doubles moments{10, 1e6, 0.5, 30, 1e6 + 1, 1.5};  // variance (0.5 + 1.5 + 7.5) / 40
  in_both_layouts([&](OpRig& rig, bool) {
    const Doubles stats = batch_norm_merge(rig, {.channels = 1, .parts = 2, .eps = 0}, moments);
    CHECK(1 / (stats[2] * stats[2]) == Approx(9.5 / 40).epsilon(1e-9));
  });
}

TEST_CASE("running statistics move by the momentum towards the unbiased variance, as in PyTorch") {
  // One channel with values 1, 2, 4, 5: mean 3, sum of squared deviations 10, unbiased variance 10/3.
  in_both_layouts([&](OpRig& rig, bool) {
    HostTensor mean{{1}, {0.5}}, variance{{1}, {2}};
    const Doubles stats = batch_norm_merge(rig, {.channels = 1, .momentum = 0.25}, {4, 3, 10}, &mean, &variance, false);
    CHECK(stats.empty());
    CHECK(mean.values[0] == Approx(0.75 * 0.5 + 0.25 * 3).epsilon(1e-7));
    CHECK(variance.values[0] == Approx(0.75 * 2 + 0.25 * 10 / 3).epsilon(1e-7));

    batch_norm_merge(rig, {.channels = 1, .momentum = 0.5}, {1, 8, 0}, &mean, &variance);  // one value: no variance
    CHECK(mean.values[0] == Approx(0.5 * 1.125 + 4).epsilon(1e-7));
    CHECK(variance.values[0] == Approx(0.5 * (1.5 + 2.5 / 3)).epsilon(1e-7));

    const HostTensor mean_before = mean, variance_before = variance;
    const Doubles none =
        batch_norm_merge(rig, {.channels = 1, .parts = 2, .eps = 0.25}, Doubles(6, 0.0), &mean, &variance);
    CHECK(mean.values == mean_before.values);
    CHECK(variance.values == variance_before.values);
    CHECK(none == Doubles{0, 0, 2});
  });
}

TEST_CASE("one op updates the running values of many normalisations independently") {
  Random random(59, RandomUse::synthetic);
  constexpr int kNorms = 70, kParts = 2;
  std::vector<Doubles> moments;
  std::vector<HostTensor> means, variances;
  for (std::int64_t i = 0; i < kNorms; ++i) {
    const std::int64_t channels = i == 3 ? 300 : 1 + i % 5;
    Doubles own;
    for (int part = 0; part < kParts; ++part) {
      own.push_back(static_cast<double>(part + i));  // the very first part is empty
      const Doubles values = random_tensor({2 * channels}, random).values;
      for (const double value : values) own.push_back(own[0] + std::abs(value));
    }
    moments.push_back(own);
    means.push_back(random_tensor({channels}, random));
    variances.push_back(random_tensor({channels}, random));
  }
  in_both_layouts([&](OpRig& rig, bool) {
    std::vector<HostTensor> mean = means, variance = variances;
    std::vector<NormRunning> all;
    for (std::size_t i = 0; i < kNorms; ++i)
      all.push_back({0.1 + 0.01 * static_cast<double>(i), moments[i], &mean[i], &variance[i]});
    batch_norm_track(rig, all, kParts);
    for (std::size_t i = 0; i < kNorms; ++i) {
      INFO("normalisation " << i);
      HostTensor own_mean = means[i], own_variance = variances[i];
      const NormRunning one{all[i].momentum, moments[i], &own_mean, &own_variance};
      batch_norm_track(rig, {&one, 1}, kParts);
      CHECK(mean[i].values == own_mean.values);
      CHECK(variance[i].values == own_variance.values);
      CHECK(mean[i].values != means[i].values);
    }
  });
}

TEST_CASE("moments include the statistics of their part, with the bits of a separate merge") {
  Random random(60, RandomUse::synthetic);
  for (const Shape& shape : {Shape{3, 20, 5, 7}, {2, 64, 20, 19}, {1, 132, 8, 9}, {0, 3, 4, 4}}) {
    const HostTensor x = random_tensor(shape, random);
    in_both_layouts([&](OpRig& rig, bool preferred) {
      INFO(to_string(shape));
      const kernels::Layout layout = preferred ? rig.preferred(shape) : rig.plain(shape);
      Doubles stats;
      const Doubles moments = batch_norm_moments(rig, x, layout, 0.25, &stats);
      CHECK(moments == batch_norm_moments(rig, x, layout));
      CHECK(stats == batch_norm_merge(rig, {.channels = shape[1], .eps = 0.25}, moments));
    });
  }
}

TEST_CASE("running statistics ignore values that are not finite") {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  in_both_layouts([&](OpRig& rig, bool) {
    HostTensor mean{{3}, {0.5, 0.5, 0.5}}, variance{{3}, {2, 2, 2}};
    batch_norm_merge(rig, {.channels = 3, .momentum = 0.5}, {4, nan, 3, 3, nan, 10, inf}, &mean, &variance, false);
    CHECK(mean.values == std::vector<double>{0.5, 1.75, 0.5});
    CHECK(variance.values[0] == 2);
    CHECK(variance.values[1] == Approx(1 + 5.0 / 3).epsilon(1e-6));
    CHECK(variance.values[2] == 2);
  });
}

TEST_CASE("evaluation normalises with the running statistics and sends no gradient through them") {
  Random random(56, RandomUse::synthetic);
  const HostTensor mean{{2}, {0.5, -2}}, variance{{2}, {3.99, 0.24}};
  const HostTensor weight{{2}, {2, 1}}, bias{{2}, {0, 1}}, x = random_tensor({2, 2, 3, 2}, random);
  in_both_layouts([&](OpRig& rig, bool preferred) {
    const kernels::Layout layout = preferred ? rig.preferred(x.shape) : rig.plain(x.shape);
    const Doubles stats = batch_norm_running(rig, mean, variance, 0.01);
    CHECK(stats[0] == 0);
    CHECK(stats[1] == 0.5);
    CHECK(stats[2] == -2);
    CHECK(stats[3] == Approx(0.5).epsilon(1e-7));
    CHECK(stats[4] == Approx(2).epsilon(1e-7));
    const HostTensor y = batch_norm_forward(rig, x, stats, weight, bias, nullptr, false, layout);
    const HostTensor dx = batch_norm_backward(rig, x, x, nullptr, stats, weight, {5, 6, 7, 8}, false, layout);
    for (std::size_t i = 0; i < 24; ++i) {
      const bool second = i / 6 % 2 == 1;
      CHECK(y.values[i] == Approx(second ? (x.values[i] + 2) * 2 + 1 : x.values[i] - 0.5).epsilon(1e-6).margin(1e-6));
      CHECK(dx.values[i] == Approx(second ? 2 * x.values[i] : x.values[i]).epsilon(1e-6).margin(1e-6));
    }
  });
}

TEST_CASE("gradients may be written over their inputs or not at all") {
  Random random(57, RandomUse::synthetic);
  const NormCase norm = random_norm({3, 24, 13, 14}, true, true, true, random);
  in_both_layouts([&](OpRig& rig, bool preferred) {
    const kernels::Layout layout = preferred ? rig.preferred(norm.x.shape) : rig.plain(norm.x.shape);
    const Doubles stats = batch_norm_merge(rig, {.channels = 24}, batch_norm_moments(rig, norm.x, layout));
    const HostTensor y = batch_norm_forward(rig, norm.x, stats, norm.weight, norm.bias, &*norm.addend, true, layout);
    const auto sums = [&](Dz dz) {
      return batch_norm_backward_sums(rig, norm.dy, &*norm.dy2, norm.x, &y, stats, dz, layout);
    };
    const NormSums own = sums(Dz::own);
    for (const Dz place : {Dz::nowhere, Dz::over_dy, Dz::over_dy2}) {
      const NormSums other = sums(place);
      CHECK(other.sums == own.sums);
      CHECK(other.dweight.values == own.dweight.values);
      CHECK(other.dbias.values == own.dbias.values);
      if (place != Dz::nowhere) CHECK(other.dz.values == own.dz.values);
    }
    const auto backward = [&](const HostTensor& gradient, const HostTensor* out, bool in_place) {
      return batch_norm_backward(rig, gradient, norm.x, out, stats, norm.weight, own.sums, in_place, layout).values;
    };
    const Doubles dx = backward(own.dz, nullptr, false);
    CHECK(backward(own.dz, nullptr, true) == dx);
    // Or directly from dy, with the ReLU given by y.
    const NormSums single = batch_norm_backward_sums(rig, norm.dy, nullptr, norm.x, &y, stats, Dz::own, layout);
    const Doubles masked = backward(single.dz, nullptr, false);
    CHECK(backward(norm.dy, &y, false) == masked);
    CHECK(backward(norm.dy, &y, true) == masked);
  });
}

TEST_CASE("an empty part has zero moments and zero sums") {
  in_both_layouts([&](OpRig& rig, bool) {
    const HostTensor x = zeros({0, 3, 4, 4});
    CHECK(batch_norm_moments(rig, x, rig.plain(x.shape)) == Doubles(7, 0.0));
    const NormSums sums =
        batch_norm_backward_sums(rig, x, nullptr, x, nullptr, {5, 1, 2, 3, 1, 1, 1}, Dz::own, rig.plain(x.shape));
    CHECK(sums.sums == Doubles(6, 0.0));
    CHECK(sums.dweight.values == Doubles(3, 0.0));
    CHECK(sums.dbias.values == Doubles(3, 0.0));
  });
}

TEST_CASE("a NaN passes the ReLU after a normalisation or an addition") {
  HostTensor x = zeros({1, 1, 2, 2});
  x.values[2] = std::numeric_limits<double>::quiet_NaN();
  in_both_layouts([&](OpRig& rig, bool preferred) {
    const kernels::Layout layout = preferred ? rig.preferred(x.shape) : rig.plain(x.shape);
    const HostTensor one{{1}, {1}};
    CHECK(std::isnan(batch_norm_forward(rig, x, {4, 0, 1}, one, one, nullptr, true, layout).values[2]));
    CHECK(std::isnan(batch_norm_moments(rig, x, layout)[1]));
  });
}
