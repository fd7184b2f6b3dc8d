// Small networks and batches for tests of the engine.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "dp/dp.h"
#include "support/tensor_errors.h"

namespace dp::test {

// conv+ReLU, ReLU+pool+dropout, conv, linear+ReLU, dropout, linear. Covers every kind of node; odd sizes, 12x12 input.
inline Model small_convnet(bool dropout = false) {
  ModelBuilder m("small_convnet", Shape{2, 12, 12});
  auto x = m.relu(m.conv2d("conv1", m.input(), {.out_channels = 5, .kernel = 3}));
  x = m.max_pool2d(m.relu(m.conv2d("conv2", x, {.out_channels = 9, .kernel = 3, .padding = 1})));
  if (dropout) x = m.dropout("dropout1", x, 0.25f);
  x = m.conv2d("conv3", x, {.out_channels = 6, .kernel = 3, .stride = 2});
  x = m.relu(m.linear("fc1", m.flatten(x), {.out_features = 13}));
  if (dropout) x = m.dropout("dropout2", x, 0.5f);
  return m.build(m.linear("fc2", x, {.out_features = 7}));
}

// A smooth function: gradients are exact up to rounding.
inline Model smooth_convnet() {
  ModelBuilder m("smooth_convnet", Shape{2, 8, 8});
  auto x = m.conv2d("conv1", m.input(), {.out_channels = 6, .kernel = 3});
  x = m.conv2d("conv2", x, {.out_channels = 9, .kernel = 3, .stride = 2});
  return m.build(m.linear("fc", m.flatten(x), {.out_features = 5}));
}

// Every kind of residual join: an identity shortcut, a projection shortcut, an addition of two convolutions, and a node
// with three readers. Odd sizes; relu == false gives a smooth function.
inline Model residual_net(bool relu = true, bool dropout = false) {
  ModelBuilder m("residual_net", Shape{3, 11, 11});
  const auto kink = [&](ModelBuilder::Node x) { return relu ? m.relu(x) : x; };
  const auto conv = [&](const std::string& name, ModelBuilder::Node x, std::int64_t channels, int kernel, int stride) {
    return m.conv2d(
        name, x, {.out_channels = channels, .kernel = kernel, .stride = stride, .padding = kernel / 2, .bias = false});
  };
  auto x = kink(m.batch_norm2d("bn1", conv("conv1", m.input(), 10, 3, 1)));
  auto y = kink(m.batch_norm2d("a.bn1", conv("a.conv1", x, 10, 3, 1)));
  y = m.batch_norm2d("a.bn2", conv("a.conv2", y, 10, 3, 1));
  x = kink(m.add(y, x));
  if (dropout) x = m.dropout("dropout", x, 0.25f);
  y = kink(m.batch_norm2d("b.bn1", conv("b.conv1", x, 17, 3, 2)));
  y = m.batch_norm2d("b.bn2", conv("b.conv2", y, 17, 3, 1));
  x = kink(m.add(y, m.batch_norm2d("b.downsample.1", conv("b.downsample.0", x, 17, 1, 2))));
  const auto shared = m.avg_pool2d(x, {.kernel = 2, .stride = 1});
  const auto left = conv("c.left", shared, 8, 3, 1), right = conv("c.right", shared, 8, 1, 1);
  x = m.batch_norm2d("c.bn", kink(m.add(left, right)));
  x = m.add(x, conv("c.skip", shared, 8, 1, 1));
  return m.build(m.linear("fc", m.flatten(m.global_avg_pool2d(x)), {.out_features = 6}));
}

inline Batch random_batch(const Model& model, std::int64_t rows, std::uint64_t seed = 1) {
  Batch batch{Tensor(model.input().prepended(rows)), Tensor(Shape{rows}, DType::i32), Tensor(Shape{rows}, DType::i64)};
  Random random(seed, RandomUse::synthetic);
  for (float& x : batch.images.span<float>()) x = random.uniform(-1, 1);
  for (std::int32_t& label : batch.labels.span<std::int32_t>())
    label = static_cast<std::int32_t>(random.below(static_cast<std::uint32_t>(model.output()[0])));
  for (std::int64_t i = 0; i < rows; ++i) batch.samples.data<std::int64_t>()[i] = 1000 + 7 * i;
  return batch;
}

inline DataParallelOptions on_cpus(int replicas) {
  DataParallelOptions options;
  options.devices = cpus(replicas);
  options.threads_per_replica = 1;
  options.pin_threads = false;  // tests run in parallel
  return options;
}

// Replica i runs on GPU i % devices.
inline DataParallelOptions on_gpus(int replicas, int devices) {
  DataParallelOptions options;
  std::vector<int> ids;
  for (int i = 0; i < replicas; ++i) ids.push_back(i % devices);
  options.devices = gpus(ids);
  options.autotune = false;  // simulated GPUs are slow and their timings are meaningless
  return options;
}

inline DataParallelOptions on_reference() {
  DataParallelOptions options = on_cpus(1);
  options.devices = {Device{DeviceKind::reference, 0}};
  return options;
}

}  // namespace dp::test
