// Numbers of channels (biases, PReLU) and softmax over channels against their definitions in double.
#include <algorithm>
#include <cmath>

#include "kernels/layer_calls.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::test;
using kernels::Channelwise;

constexpr double kChannelwiseRounding = 3e-7, kChannelwiseSums = 2e-6;

const Shape kChannelShapes[] = {{1, 1},       {3, 13},         {7, 128},       {1, 1, 5, 3},
                                {3, 5, 7, 5}, {7, 8, 3, 3},    {2, 13, 4, 5},  {3, 32, 5, 7},
                                {5, 8, 1, 1}, {1, 24, 45, 47}, {2, 132, 3, 2}, {2, 4, 16, 20}};

struct ChannelSize {
  explicit ChannelSize(const Shape& x) : channels(x[1]), pixels(x.rank() == 4 ? x[2] * x[3] : 1) {}
  std::int64_t channels, pixels;
};

LayerResult naive_channelwise(const HostTensor& x, const HostTensor& w, const HostTensor& dy, Channelwise function) {
  const ChannelSize size(x.shape);
  LayerResult r{zeros(x.shape), dy, zeros(w.shape), {}};
  for (std::size_t i = 0; i < x.values.size(); ++i) {
    const auto channel = static_cast<std::int64_t>(i) / size.pixels % size.channels;
    const auto number = static_cast<std::size_t>(w.shape[0] == 1 ? 0 : channel);
    const bool scaled = function == Channelwise::prelu && x.values[i] <= 0;
    r.y.values[i] =
        function == Channelwise::add ? x.values[i] + w.values[number] : x.values[i] * (scaled ? w.values[number] : 1);
    if (scaled) r.dx.values[i] = dy.values[i] * w.values[number];
    r.dw.values[number] += function == Channelwise::add ? dy.values[i] : scaled ? dy.values[i] * x.values[i] : 0;
  }
  return r;
}

LayerResult naive_softmax(const HostTensor& x, const HostTensor& dy) {
  const ChannelSize size(x.shape);
  LayerResult r{zeros(x.shape), zeros(x.shape), {}, {}};
  for (std::int64_t n = 0; n < x.shape[0]; ++n)
    for (std::int64_t p = 0; p < size.pixels; ++p) {
      const auto at = [&](std::int64_t c) {
        return static_cast<std::size_t>((n * size.channels + c) * size.pixels + p);
      };
      double sum = 0, product = 0;
      for (std::int64_t c = 0; c < size.channels; ++c) sum += std::exp(x.values[at(c)]);
      for (std::int64_t c = 0; c < size.channels; ++c) {
        r.y.values[at(c)] = std::exp(x.values[at(c)]) / sum;
        product += r.y.values[at(c)] * dy.values[at(c)];
      }
      for (std::int64_t c = 0; c < size.channels; ++c)
        r.dx.values[at(c)] = r.y.values[at(c)] * (dy.values[at(c)] - product);
    }
  return r;
}

// Calls check(rig, layout, in_place) on every device.
template <typename Check>
void on_every_device(const Shape& shape, const Check& check) {
  for (const DeviceKind kind : tested_kinds())
    for (const int threads : {1, 3}) {
      OpRig rig(kind, threads);
      for (const kernels::Layout& layout : layouts_of(rig, shape))
        for (const bool in_place : {false, true}) {
          INFO(to_string(Device{kind, 0})
               << " " << layout.name << ", " << threads << " threads" << (in_place ? ", in place" : ""));
          check(rig, layout, in_place);
        }
    }
}

}  // namespace

TEST_CASE("a number for all channels or for each is added, or multiplies what is not positive, with its gradient") {
  Random random(94, RandomUse::synthetic);
  for (const Shape& shape : kChannelShapes)
    for (const Channelwise function : {Channelwise::add, Channelwise::prelu})
      for (const std::int64_t numbers : {std::int64_t{1}, shape[1]}) {
        HostTensor x = random_tensor(shape, random);
        const HostTensor w = random_tensor({numbers}, random), dy = random_tensor(shape, random);
        x.values[0] = 0;
        const LayerResult expected = naive_channelwise(x, w, dy, function);
        const double size = norm(dy.values) * std::max(1.0, norm(x.values)) / std::sqrt(static_cast<double>(numbers));
        on_every_device(shape, [&](OpRig& rig, const kernels::Layout& layout, bool in_place) {
          const LayerResult actual = channelwise(rig, x, w, dy, function, layout, in_place);
          CHECK(relative_error(actual.y, expected.y) <= kChannelwiseRounding);
          CHECK(relative_error(actual.dx, expected.dx) <= kChannelwiseRounding);
          for (std::size_t i = 0; i < expected.dw.values.size(); ++i)
            CHECK(std::abs(actual.dw.values[i] - expected.dw.values[i]) <= kChannelwiseRounding * size);
        });
      }
}

TEST_CASE("softmax divides the exponentials of a pixel by their sum over the channels, with its gradient") {
  Random random(95, RandomUse::synthetic);
  for (const Shape& shape : kChannelShapes)
    for (const double scale : {1.0, 30.0}) {
      HostTensor x = random_tensor(shape, random);
      for (double& value : x.values) value = static_cast<float>(value * scale);
      const HostTensor dy = random_tensor(shape, random);
      const LayerResult expected = naive_softmax(x, dy);
      on_every_device(shape, [&](OpRig& rig, const kernels::Layout& layout, bool in_place) {
        const LayerResult actual = softmax(rig, x, dy, layout, in_place);
        CHECK(relative_error(actual.y, expected.y) <= kChannelwiseSums);
        CHECK(norm(actual.dx.values) <= norm(dy.values));
        HostTensor away = actual.dx;
        for (std::size_t i = 0; i < away.values.size(); ++i) away.values[i] -= expected.dx.values[i];
        CHECK(norm(away.values) <= kChannelwiseSums * norm(dy.values));
      });
    }
}

TEST_CASE("a softmax of large values does not overflow, and NaN stays in its pixel") {
  HostTensor x{{2, 3}, {1000, 999, -1000, 1, NAN, 2}};
  on_every_device(x.shape, [&](OpRig& rig, const kernels::Layout& layout, bool in_place) {
    const HostTensor y = softmax(rig, x, x, layout, in_place).y;
    CHECK(y.values[0] == Approx(1 / (1 + std::exp(-1.0))).epsilon(1e-6));
    CHECK(y.values[2] == 0);
    for (std::size_t i = 3; i < 6; ++i) CHECK(std::isnan(y.values[i]));
  });
}
