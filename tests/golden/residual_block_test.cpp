// A block of a residual network in the engine against PyTorch in float64.
#include <cmath>

#include "golden/golden_cases.h"
#include "support/catch.h"
#include "support/training.h"

namespace {

using namespace dp;
using namespace dp::test;

Model block(const Shape& input, std::int64_t channels, int stride) {
  ModelBuilder m("block", input);
  const auto conv = [&](const std::string& name, ModelBuilder::Node x, int kernel, int by) {
    return m.conv2d(name, x,
                    {.out_channels = channels, .kernel = kernel, .stride = by, .padding = kernel / 2, .bias = false});
  };
  auto x = m.input();
  auto y = m.relu(m.batch_norm2d("bn1", conv("conv1", x, 3, stride)));
  y = m.batch_norm2d("bn2", conv("conv2", y, 3, 1));
  if (stride != 1 || input[0] != channels) x = m.batch_norm2d("downsample.1", conv("downsample.0", x, 1, stride));
  return m.build(m.flatten(m.relu(m.add(y, x))));
}

double error(const GoldenFile& golden, const std::string& name, const Tensor& actual) {
  HostTensor values{actual.shape(), {}};
  for (std::int64_t i = 0; i < actual.numel(); ++i) values.values.push_back(value_at(actual, i));
  return relative_error(values, golden.values(name));
}

DataParallelOptions on(DeviceKind kind) { return kind == DeviceKind::reference ? on_reference() : on_cpus(1); }

}  // namespace

TEST_CASE("a block of conv, batch_norm, add and ReLU equals PyTorch's outputs, gradients and running statistics") {
  const GoldenFile golden("residual_layers.safetensors");
  for_each_case(golden, "block", 2, [&](DeviceKind kind, const std::string& prefix) {
    const double tolerance = golden_tolerance(kind, prefix);
    const Tensor& images = golden.at(prefix + "x");  // two batches
    const Shape batch = images.shape().without_first();
    const auto stride = static_cast<int>(golden.values(prefix + "stride").values[0]);
    const std::int64_t channels = golden.at(prefix + "initial.bn1.weight").shape()[0];
    DataParallel net(block(batch.without_first(), channels, stride), on(kind));
    std::vector<NamedTensor> initial;
    for (const auto& [name, tensor] : net.weights()) initial.emplace_back(name, golden.at(prefix + "initial." + name));
    net.set_weights(initial);

    net.forward(images.rows(0, 1).reshaped(batch));
    const Tensor last = images.rows(1, 2).reshaped(batch);
    const Tensor& y = net.forward(last);
    CHECK(error(golden, prefix + "y", y) <= tolerance);
    Tensor dy(y.shape(), y.dtype());
    const auto given = golden.at(prefix + "dy").span<float>();
    for (std::size_t i = 0; i < given.size(); ++i)
      if (dy.dtype() == DType::f64)
        dy.span<double>()[i] = double{given[i]};
      else
        dy.span<float>()[i] = given[i];
    net.backward(dy);
    for (const auto& [name, gradient] : net.gradients()) {
      INFO(name);
      CHECK(error(golden, prefix + "gradient." + name, gradient) <= tolerance);
    }
    for (const auto& [name, tensor] : net.weights()) {
      INFO(name);
      if (golden.has(prefix + "after." + name)) CHECK(error(golden, prefix + "after." + name, tensor) <= tolerance);
    }
    CHECK(error(golden, prefix + "prediction", net.predict(last)) <= tolerance);
  });
}
