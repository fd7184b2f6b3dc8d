#include <cmath>

#include "kernels/norm_calls.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::test;

// By definition in double.
GroupNormResult naive_group_norm(const GroupNormCase& norm) {
  const std::int64_t channels = norm.x.shape[1], pixels = norm.x.shape[2] * norm.x.shape[3];
  const bool pixelwise = norm.groups == kernels::kEachPixel;
  const std::int64_t each = pixelwise ? channels : channels / norm.groups * pixels, step = pixelwise ? pixels : 1;
  GroupNormResult r{{}, zeros(norm.x.shape), zeros(norm.x.shape), {}, {}};
  if (norm.affine) r.dweight = r.dbias = zeros({channels});
  for (std::int64_t group = 0; group < norm.x.shape.numel() / each; ++group) {
    const std::int64_t begin = pixelwise ? group / pixels * channels * pixels + group % pixels : group * each;
    double mean = 0, variance = 0, sum = 0, product = 0;
    std::vector<std::size_t> own;
    for (std::int64_t k = 0; k < each; ++k) own.push_back(static_cast<std::size_t>(begin + k * step));
    const auto channel = [&](std::size_t i) {
      return i / static_cast<std::size_t>(pixels) % static_cast<std::size_t>(channels);
    };
    const auto weight = [&](std::size_t i) { return norm.affine ? norm.weight.values[channel(i)] : 1; };
    for (const std::size_t i : own) mean += norm.x.values[i] / static_cast<double>(each);
    for (const std::size_t i : own) variance += std::pow(norm.x.values[i] - mean, 2) / static_cast<double>(each);
    const double deviation = std::sqrt(variance + norm.eps);
    const auto hat = [&](std::size_t i) { return (norm.x.values[i] - mean) / deviation; };
    for (const std::size_t i : own) {
      const double y = hat(i) * weight(i) + (norm.affine ? norm.bias.values[channel(i)] : 0);
      r.y.values[i] = norm.relu ? std::max(0.0, y) : y;
      sum += norm.dy.values[i] * weight(i);
      product += norm.dy.values[i] * weight(i) * hat(i);
      if (!norm.affine) continue;
      r.dweight.values[channel(i)] += norm.dy.values[i] * hat(i);
      r.dbias.values[channel(i)] += norm.dy.values[i];
    }
    for (const std::size_t i : own)
      r.dx.values[i] =
          (norm.dy.values[i] * weight(i) - (sum + hat(i) * product) / static_cast<double>(each)) / deviation;
    r.stats.push_back(mean), r.stats.push_back(1 / deviation);
  }
  return r;
}

GroupNormCase random_group_norm(const Shape& shape, std::int64_t groups, Random& random) {
  const Shape channels{shape[1]};
  return {.x = random_tensor(shape, random),
          .weight = random_tensor(channels, random),
          .bias = random_tensor(channels, random),
          .dy = random_tensor(shape, random),
          .groups = groups};
}

void check_on_every_device(const GroupNormCase& norm, double tolerance) {
  const GroupNormResult expected = naive_group_norm(norm);
  for (const DeviceKind kind : tested_kinds())
    for (const bool preferred : {false, true})
      for (const int threads : {1, 3}) {
        OpRig rig(kind, threads);
        INFO(to_string(Device{kind, 0}) << (preferred ? ", preferred layout " : ", row-major ")
                                        << to_string(norm.x.shape) << ", " << norm.groups << " groups, affine "
                                        << norm.affine << ", relu " << norm.relu << ", threads " << threads);
        const GroupNormResult actual = group_norm(rig, norm, preferred, /*in_place=*/threads == 3);
        CHECK(relative_error(actual.y, expected.y) <= tolerance);
        CHECK(relative_error(actual.dx, expected.dx) <= 2 * tolerance);
        const Shape stats{static_cast<std::int64_t>(expected.stats.size())};
        CHECK(relative_error({stats, actual.stats}, {stats, expected.stats}) <= tolerance);
        if (!norm.affine) continue;
        CHECK(relative_error(actual.dweight, expected.dweight) <= 2 * tolerance);
        CHECK(relative_error(actual.dbias, expected.dbias) <= tolerance);
      }
}

}  // namespace

TEST_CASE("group normalisation equals its definition for every division of channels, in every layout") {
  Random random(71, RandomUse::synthetic);
  struct Sizes {
    Shape shape;
    std::int64_t groups;
  };
  // Groups of one channel, of all, within a block of channels and across blocks; one image, one pixel, one row.
  const Sizes all[] = {{{4, 20, 5, 7}, 5},  {{3, 16, 4, 4}, 1},    {{3, 16, 1, 1}, 2},  {{2, 33, 6, 5}, 11},
                       {{5, 8, 3, 3}, 8},   {{1, 48, 20, 19}, 2},  {{2, 68, 9, 4}, 17}, {{2, 132, 8, 9}, 4},
                       {{3, 1, 45, 47}, 1}, {{2, 264, 3, 2}, 2},   {{2, 6, 1, 9}, 3},   {{37, 4, 2, 3}, 2},
                       {{2, 300, 2, 2}, 1}, {{1, 16, 47, 45}, 16}, {{2, 32, 6, 6}, 32}};
  int turn = 0;
  for (const Sizes& sizes : all) {
    GroupNormCase norm = random_group_norm(sizes.shape, sizes.groups, random);
    norm.affine = ++turn % 3 != 0;
    norm.relu = turn % 2 == 0;
    check_on_every_device(norm, kNormTolerance);
  }
}

TEST_CASE("layer normalisation equals its definition, in every layout") {
  Random random(74, RandomUse::synthetic);
  // Blocks of channels with and without padding, several strips of pixels, one pixel, two channels, many channels.
  const Shape all[] = {{4, 20, 5, 7}, {3, 16, 4, 4},   {2, 33, 9, 15}, {5, 2, 3, 3},    {1, 48, 20, 19}, {7, 96, 1, 1},
                       {2, 68, 9, 4}, {1, 2500, 2, 1}, {3, 7, 8, 8},   {1, 130, 65, 1}, {2, 264, 3, 2}};
  int turn = 0;
  for (const Shape& shape : all) {
    GroupNormCase norm = random_group_norm(shape, kernels::kEachPixel, random);
    norm.affine = ++turn % 3 != 0;
    norm.relu = turn % 2 == 0;
    check_on_every_device(norm, kNormTolerance);
  }
}

TEST_CASE("group normalisation of values far from zero loses only what float32 rounds off") {
  Random random(72, RandomUse::synthetic);
  for (const std::int64_t groups : {std::int64_t{3}, kernels::kEachPixel}) {
    GroupNormCase norm = random_group_norm({2, 24, 7, 6}, groups, random);
    for (double& value : norm.x.values) value = static_cast<float>(1000 + value);
    // Each x and its distance from the rounded mean are exact in float32.
    check_on_every_device(norm, kNormTolerance);
  }
}

TEST_CASE("a group or layer normalisation of no images gives zero gradients of weight and bias") {
  Random random(73, RandomUse::synthetic);
  const std::int64_t groups = GENERATE(std::int64_t{3}, kernels::kEachPixel);
  GroupNormCase norm = random_group_norm({1, 6, 2, 2}, groups, random);
  norm.x = norm.dy = HostTensor{{0, 6, 2, 2}, {}};
  for (const DeviceKind kind : tested_kinds()) {
    OpRig rig(kind);
    INFO(to_string(Device{kind, 0}));
    const GroupNormResult actual = group_norm(rig, norm, false);
    CHECK(actual.dweight.values == Doubles(6, 0.0));
    CHECK(actual.dbias.values == Doubles(6, 0.0));
  }
}
