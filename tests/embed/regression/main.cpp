#include <dp/dp.h>

#include <cstdio>

// Images of 16x16 with a bright square of 4x4. The targets are its row and column, from -1 to 1.
dp::Batch squares(std::int64_t rows, std::uint64_t seed) {
  dp::Batch batch;
  batch.images = dp::Tensor({rows, 1, 16, 16});
  batch.targets = dp::Tensor({rows, 2});
  dp::Random random(seed, dp::RandomUse::synthetic);
  for (std::int64_t n = 0; n < rows; ++n) {
    const std::uint32_t row = random.below(13), column = random.below(13);
    for (std::uint32_t i = 0; i < 16; ++i)
      batch.images.data<float>()[256 * n + 16 * (row + i / 4) + column + i % 4] = 1;
    batch.targets.data<float>()[2 * n] = static_cast<float>(row) / 6 - 1;
    batch.targets.data<float>()[2 * n + 1] = static_cast<float>(column) / 6 - 1;
  }
  return batch;
}

int main() {
  dp::ModelBuilder m("find_square", {1, 16, 16});
  auto x = m.relu(m.conv2d("conv", m.input(), {.out_channels = 8, .kernel = 3, .padding = 1}));
  x = m.relu(m.linear("fc1", m.flatten(m.max_pool2d(x, {.kernel = 2})), {.out_features = 64}));
  const dp::Model model = m.build(m.linear("fc2", x, {.out_features = 2}));

  dp::DataParallel net(model, {.devices = dp::cpus(2), .output_loss = dp::HuberLoss{}});
  for (std::uint64_t step = 0; step < 400; ++step) net.train_step(squares(64, step), dp::Adam{.lr = 1e-3f});
  net.take_stats();  // of training

  const dp::Batch test = squares(512, 1000);
  net.evaluate(test);
  std::printf("test loss %.5f\n", net.take_stats().loss());

  const dp::Tensor& found = net.predict(test.images);  // (512, 2)
  double away = 0;
  for (std::int64_t i = 0; i < found.numel(); ++i)
    away += std::abs(found.data<float>()[i] - test.targets.data<float>()[i]) * 6 / 1024;
  std::printf("mean distance from the true row or column: %.2f pixels\n", away);
  return away < 0.5 ? 0 : 1;
}
