// Products that broadcast, and copies of channels: concatenations and slices are made of them.
#include "kernels/layer_calls.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::test;

constexpr double kRounding = 2e-7, kSums = 2e-6;

// By definition in double.
Products naive_products(const HostTensor& x, const HostTensor& s, const HostTensor& dy) {
  Products r{zeros(x.shape), zeros(x.shape), zeros(s.shape)};
  const auto pixels = static_cast<std::size_t>(x.shape.rank() == 4 ? x.shape[2] * x.shape[3] : 1);
  const auto channels = static_cast<std::size_t>(x.shape[1]);
  for (std::size_t i = 0; i < x.values.size(); ++i) {
    const std::size_t sample = i / pixels / channels;
    const std::size_t factor = s.shape == x.shape         ? i
                               : s.shape[1] == x.shape[1] ? i / pixels
                                                          : sample * pixels + i % pixels;
    r.y.values[i] = x.values[i] * s.values[factor];
    r.dx.values[i] = dy.values[i] * s.values[factor];
    r.ds.values[factor] += dy.values[i] * x.values[i];
  }
  return r;
}

}  // namespace

TEST_CASE("a product multiplies each element, channel or pixel by its factor, in every layout and in place") {
  Random random(81, RandomUse::synthetic);
  const Shape images[] = {{3, 20, 5, 7},  {2, 16, 4, 4},   {2, 33, 6, 5}, {5, 1, 3, 3},  {5, 8, 1, 1},
                          {2, 132, 3, 2}, {1, 24, 45, 47}, {3, 7, 1, 13}, {2, 4, 16, 20}};
  std::vector<std::pair<Shape, Shape>> cases{{{3, 13}, {3, 13}}, {{2, 128}, {2, 128}}};
  for (const Shape& x : images)
    for (const Shape& s : {x, Shape{x[0], x[1], 1, 1}, Shape{x[0], 1, x[2], x[3]}}) cases.emplace_back(x, s);
  for (const auto& [x_shape, s_shape] : cases) {
    const HostTensor x = random_tensor(x_shape, random), s = random_tensor(s_shape, random),
                     dy = random_tensor(x_shape, random);
    const Products expected = naive_products(x, s, dy);
    for (const DeviceKind kind : tested_kinds())
      for (const int threads : {1, 3}) {
        OpRig rig(kind, threads);
        for (const kernels::Layout& layout : layouts_of(rig, x_shape))
          for (const bool in_place : {false, true}) {
            INFO(to_string(Device{kind, 0}) << " " << layout.name << " by " << to_string(s_shape) << ", " << threads
                                            << " threads" << (in_place ? ", in place" : ""));
            const Products actual = multiply(rig, x, s, dy, layout, in_place);
            CHECK(relative_error(actual.y, expected.y) <= kRounding);
            CHECK(relative_error(actual.dx, expected.dx) <= kRounding);
            CHECK(relative_error(actual.ds, expected.ds) <= kSums);
          }
      }
  }
}

TEST_CASE("dropped channels and samples follow dropout's random words, and the kept ones are scaled") {
  const kernels::StepInputs inputs{.seed = 0xfedcba9876543210, .step = (std::uint64_t{1} << 32) + 5};
  std::vector<std::int64_t> samples;
  for (std::int64_t n = 0; n < 67; ++n) samples.push_back(1000 * n + (n << 34));
  for (const std::int64_t channels : {1, 7, 32})
    for (const float p : {0.0f, 0.25f, 0.9f})
      for (const bool whole_samples : {false, true}) {
        const kernels::DropoutSpec spec{p, 11};
        HostTensor expected = zeros({67, channels, 1, 1});
        for (std::size_t i = 0; i < expected.values.size(); ++i) {
          const auto n = i / static_cast<std::size_t>(channels);
          const auto element = whole_samples ? 0u : static_cast<std::uint32_t>(i % static_cast<std::size_t>(channels));
          const PhiloxWords words =
              dropout_words(inputs.seed, spec.layer, inputs.step, static_cast<std::uint64_t>(samples[n]), element / 4);
          expected.values[i] = words[element % 4] < drop_threshold(p) ? 0 : 1 / (1 - static_cast<double>(p));
        }
        for (const DeviceKind kind : tested_kinds()) {
          OpRig rig(kind);
          INFO(to_string(Device{kind, 0}) << " " << channels << " channels, p " << p << " " << whole_samples);
          CHECK(relative_error(drop_factors(rig, channels, spec, whole_samples, samples, inputs), expected) <=
                kRounding);
        }
      }
}

TEST_CASE("copied channels arrive between any two layouts, and all others stay as they are") {
  Random random(82, RandomUse::synthetic);
  struct Copy {
    Shape x, y;
    Channels channels;
  };
  // Whole tensors, whole blocks of channels, parts of blocks, the last channels of a block that is not full.
  const Copy copies[] = {{{2, 16, 4, 4}, {2, 48, 4, 4}, {0, 16, 16}},
                         {{2, 16, 4, 4}, {2, 16, 4, 4}, {0, 0, 16}},
                         {{3, 20, 5, 3}, {3, 37, 5, 3}, {0, 17, 20}},
                         {{2, 37, 3, 5}, {2, 20, 3, 5}, {17, 0, 20}},
                         {{1, 64, 2, 2}, {1, 24, 2, 2}, {5, 3, 19}},
                         {{2, 5, 3, 3}, {2, 9, 3, 3}, {4, 8, 1}},
                         {{3, 40, 1, 1}, {3, 24, 1, 1}, {8, 4, 20}},
                         {{4, 12}, {4, 30}, {0, 18, 12}},
                         {{3, 28}, {3, 9}, {11, 2, 7}},
                         {{2, 1, 4, 6}, {2, 3, 4, 6}, {0, 1, 1}},
                         // Channels apart: a half of 58 interleaved, every third of 64, to the last channel or not.
                         {{2, 58, 3, 5}, {2, 58, 3, 5}, {29, 1, 29, 1, 2}},
                         {{2, 58, 3, 5}, {2, 58, 3, 5}, {0, 0, 29, 2, 1}},
                         {{1, 64, 4, 4}, {1, 40, 4, 4}, {2, 3, 9, 3, 4}},
                         {{3, 16, 2, 2}, {3, 32, 2, 2}, {0, 0, 16, 1, 2}},
                         {{3, 9, 1, 1}, {3, 7, 1, 1}, {1, 0, 3, 3, 2}},
                         {{2, 12}, {2, 12}, {1, 0, 6, 2, 1}}};
  for (const Copy& copy : copies) {
    const HostTensor x = random_tensor(copy.x, random), before = random_tensor(copy.y, random);
    HostTensor after = before;
    const std::int64_t pixels = copy.x.rank() == 4 ? copy.x[2] * copy.x[3] : 1;
    for (std::int64_t n = 0; n < copy.x[0]; ++n)
      for (std::int64_t i = 0; i < copy.channels.count; ++i) {
        const Channels& c = copy.channels;
        const std::int64_t from = n * copy.x[1] + c.from + i * c.from_step, to = n * copy.y[1] + c.to + i * c.to_step;
        std::copy_n(x.values.begin() + from * pixels, pixels, after.values.begin() + to * pixels);
      }
    for (const DeviceKind kind : tested_kinds()) {
      OpRig rig(kind, 2);
      for (const kernels::Layout& from : layouts_of(rig, copy.x))
        for (kernels::Layout& to : layouts_of(rig, copy.y)) {
          INFO(to_string(Device{kind, 0}) << " " << from.name << " to " << to.name);
          CHECK(copy_channels(rig, x, before, copy.channels, from, to).values == after.values);
        }
      CHECK(copy_channels(rig, x, before, copy.channels, {}, {}).values == after.values);
    }
  }
}
