// The parts of batch normalisation that work on one plane, and the merging of moments.
#include "kernels/norm/cpu_plane.h"

#include <omp.h>

#include <limits>
#include <vector>

#include "dp/random.h"
#include "kernels/device/cpu/announce.h"
#include "kernels/device/cpu/lanes.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::kernels;

using Doubles = std::vector<double>;
using Floats = std::vector<float>;

struct GradientSums {
  Doubles sums, products;
};

// Of `dy`, with 0.5 as every x and 0 as the shift.
GradientSums sums_of(const NormPlane& plane, const Floats& dy) {
  const Floats x(dy.size(), 0.5f), shift(static_cast<std::size_t>(plane.block));
  GradientSums result{Doubles(shift.size()), Doubles(shift.size())};
  const NormGradient<float> tensors{dy.data(), nullptr, x.data(), nullptr, nullptr};
  add_gradient_sums(plane, tensors, shift.data(), result.sums.data(), result.products.data());
  return result;
}

}  // namespace

TEST_CASE("the values that fill one vector of a single channel are added in double") {
  Floats dy(kLanes, 1);
  dy[0] = 0x1p24f;  // in float32 the others would vanish beside it
  const GradientSums result = sums_of({kLanes, 1}, dy);
  CHECK(result.sums == Doubles{0x1p24 + kLanes - 1});
  CHECK(result.products == Doubles{(0x1p24 + kLanes - 1) / 2});
}

// Sums of 64 such integers are below 2^24, hence exact in float32. Those of more are not.
TEST_CASE("gradients are summed in float32 over at most 64 vectors, then in double") {
  Random random(91, RandomUse::synthetic);
  for (const std::int64_t block : {1, 3, 8, 16, 24})
    for (const std::int64_t runs : {1, 2, 5}) {
      const NormPlane plane{block == 1 ? runs * 64 * kLanes + 3 : runs * 64 + 3, block};
      Floats dy(static_cast<std::size_t>(plane.pixels * block));
      for (float& value : dy) value = static_cast<float>((1 << 18) - 1 - static_cast<int>(random.below(1024)));
      Doubles sums(static_cast<std::size_t>(block)), halves = sums;
      for (std::size_t i = 0; i < dy.size(); ++i) sums[i % sums.size()] += static_cast<double>(dy[i]);
      for (std::size_t c = 0; c < sums.size(); ++c) halves[c] = sums[c] / 2;
      INFO("block " << block << ", " << plane.pixels << " pixels");
      const GradientSums result = sums_of(plane, dy);
      CHECK(result.sums == sums);
      CHECK(result.products == halves);
    }
}

TEST_CASE("merging with empty moments does not read their values") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Doubles unknown{nan, nan}, part_mean{1, -2}, part_squares{3, 4};
  Doubles mean = unknown, squares = unknown;
  merge_moments(2, 0, mean.data(), squares.data(), 0, unknown.data(), unknown.data());
  CHECK(mean == Doubles{0, 0});
  CHECK(squares == Doubles{0, 0});

  mean = squares = unknown;
  merge_moments(2, 0, mean.data(), squares.data(), 5, part_mean.data(), part_squares.data());
  CHECK(mean == part_mean);
  CHECK(squares == part_squares);
  merge_moments(2, 5, mean.data(), squares.data(), 0, unknown.data(), unknown.data());
  CHECK(mean == part_mean);
  CHECK(squares == part_squares);

  // Three more values: the means move by 3/8 of the distances 8 and -4, whose squares count 5 * 3/8 times.
  const Doubles more_mean{9, -6}, more_squares{0.5, 0.25};
  merge_moments(2, 5, mean.data(), squares.data(), 3, more_mean.data(), more_squares.data());
  CHECK(mean == Doubles{4, -3.5});
  CHECK(squares == Doubles{3 + 0.5 + 64 * 1.875, 4 + 0.25 + 16 * 1.875});
}

TEST_CASE("statistics of no values have a mean of zero and the scale of eps") {
  const Doubles mean{0.5, -1}, squares{6, 8};
  Doubles stats(5);
  write_stats(2, 8, mean.data(), squares.data(), 0.25, stats.data());
  CHECK(stats == Doubles{8, 0.5, -1, 1, 1 / std::sqrt(1.25)});
  const Doubles zeros(2);
  write_stats(2, 0, zeros.data(), zeros.data(), 0.25, stats.data());
  CHECK(stats == Doubles{0, 0, 0, 2, 2});
}

TEST_CASE("a batch is reduced in at most 16 groups of consecutive samples, which depend on its size only") {
  for (const std::int64_t samples : {0, 1, 15, 16, 17, 40}) {
    INFO(samples << " samples");
    const SampleGroups groups(samples);
    CHECK(groups.samples == samples);
    CHECK(groups.count == std::min<std::int64_t>(samples, 16));
  }
  std::vector<std::int64_t> begins;
  const SampleGroups groups(40);
  for (std::int64_t group = 0; group <= groups.count; ++group) begins.push_back(groups.begin(group));
  CHECK(begins == std::vector<std::int64_t>{0, 2, 5, 7, 10, 12, 15, 17, 20, 22, 25, 27, 30, 32, 35, 37, 40});
}

TEST_CASE("one thread handles all planes of a group and block, in the order of the samples") {
  constexpr std::int64_t kBlocks = 3;
  const SampleGroups groups(40);
  for (const int threads : {1, 2, 3, 5}) {
    if (threads > 1 && kThreadSanitizer) continue;  // it does not see OpenMP's barriers
    INFO(threads << " threads");
    struct Visits {
      std::vector<std::int64_t> samples;
      std::vector<int> threads;
    };
    std::vector<Visits> visits(static_cast<std::size_t>(groups.count * kBlocks));
    for_grouped_planes(threads, groups, kBlocks, [&](std::int64_t group, std::int64_t n, std::int64_t block) {
      Visits& own = visits[static_cast<std::size_t>(group * kBlocks + block)];
      own.samples.push_back(n);
      own.threads.push_back(omp_get_thread_num());
    });
    for (std::size_t i = 0; i < visits.size(); ++i) {
      const auto group = static_cast<std::int64_t>(i) / kBlocks;
      std::vector<std::int64_t> expected;
      for (std::int64_t n = groups.begin(group); n < groups.begin(group + 1); ++n) expected.push_back(n);
      CHECK(visits[i].samples == expected);
      CHECK(visits[i].threads == std::vector<int>(expected.size(), visits[i].threads.at(0)));
    }
  }
}
