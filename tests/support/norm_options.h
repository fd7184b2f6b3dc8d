// Batch normalisation with non-default eps and momentum against the formula, for every kind of device.
#pragma once

#include <cmath>
#include <vector>

#include "engine/base/test_modes.h"
#include "support/catch.h"
#include "support/training.h"

namespace dp::test {

struct ExpectedNorm {
  double eps, momentum;
  std::vector<double> mean, variance;  // running statistics per channel

  // x is (N,C,H,W). Expects what a new layer with weight 1 and bias 0 computes, first in training, then in evaluation.
  std::vector<double> apply(const std::vector<double>& x, std::int64_t channels, bool training) {
    const auto c = static_cast<std::size_t>(channels), cells = static_cast<std::size_t>(kCells);
    const double count = static_cast<double>(x.size() / c);
    std::vector<double> y(x.size());
    mean.resize(c, 0), variance.resize(c, 1);
    for (std::size_t channel = 0; channel < c; ++channel) {
      const auto in_channel = [&](const auto& use) {
        for (std::size_t i = 0; i < x.size(); ++i)
          if (i / cells % c == channel) use(i);
      };
      double m = mean[channel], v = variance[channel];
      if (training) {
        m = v = 0;
        in_channel([&](std::size_t i) { m += x[i] / count; });
        in_channel([&](std::size_t i) { v += (x[i] - m) * (x[i] - m) / count; });
        mean[channel] += momentum * (m - mean[channel]);
        variance[channel] += momentum * (v * count / (count - 1) - variance[channel]);
      }
      in_channel([&](std::size_t i) { y[i] = (x[i] - m) / std::sqrt(v + eps); });
    }
    return y;
  }

  static constexpr std::int64_t kCells = 16;
};

// Three normalisations, each with another eps: one alone, one after a convolution that may compute its moments, and one
// between two convolutions that may apply it to their input.
inline void check_norm_options(DataParallelOptions options) {
  constexpr std::int64_t kChannels = 8, kRows = 6;
  const BatchNorm2d given[] = {{0.05, 0.3}, {0.4, 0.2}, {2.0, 0.6}};
  ModelBuilder m("norms", Shape{kChannels, 4, 4});
  const Conv2d same{.out_channels = kChannels, .kernel = 1, .bias = false};
  auto x = m.conv2d("conv1", m.batch_norm2d("bn1", m.input(), given[0]), same);
  x = m.conv2d("conv2", m.relu(m.batch_norm2d("bn2", x, given[1])), same);
  const Model model = m.build(m.flatten(m.batch_norm2d("bn3", x, given[2])));
  const Batch batch = random_batch(model, kRows);

  std::vector<ExpectedNorm> norms;
  for (const BatchNorm2d& norm : given) norms.push_back({norm.eps, norm.momentum, {}, {}});
  const auto expected = [&](bool training) {
    std::vector<double> values(batch.images.span<float>().begin(), batch.images.span<float>().end());
    for (std::size_t i = 0; i < norms.size(); ++i) {
      values = norms[i].apply(values, kChannels, training);
      for (double& value : values) value = i == 1 ? std::max(value, 0.0) : value;
    }
    Tensor result(Shape{kRows, model.output()[0]}, DType::f64);
    std::copy(values.begin(), values.end(), result.data<double>());
    return result;
  };
  const Tensor trained = expected(true), predicted = expected(false);

  Tensor identity(Shape{kChannels, kChannels, 1, 1});
  for (std::int64_t i = 0; i < kChannels; ++i) identity.data<float>()[i * (kChannels + 1)] = 1;
  for (const kernels::NormFusion fusion : {kernels::NormFusion::never, kernels::NormFusion::always})
    for (const BatchNormMode mode : {BatchNormMode::master, BatchNormMode::pooled, BatchNormMode::sync}) {
      INFO("fused " << (fusion == kernels::NormFusion::always) << ", mode " << static_cast<int>(mode));
      engine::test_modes().norm_fusion = fusion;
      options.batch_norm = mode;
      DataParallel net(model, options);
      engine::test_modes().norm_fusion = kernels::NormFusion::measured;
      net.set_weights({{"conv1.weight", identity}, {"conv2.weight", identity}});
      CHECK(relative_error(net.forward(batch.images).clone(), trained) <= 2e-6);
      CHECK(relative_error(net.predict(batch.images).clone(), predicted) <= 2e-6);
    }
}

}  // namespace dp::test
