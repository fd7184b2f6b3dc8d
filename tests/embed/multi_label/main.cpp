#include <dp/dp.h>

#include <cstdio>

// Images of 12x12 with any of three things: a bright row, a bright column, a bright corner. Each has a target, 0 or 1.
dp::Batch things(std::int64_t rows, std::uint64_t seed) {
  dp::Batch batch;
  batch.images = dp::Tensor({rows, 1, 12, 12});
  batch.targets = dp::Tensor({rows, 3});
  dp::Random random(seed, dp::RandomUse::synthetic);
  for (std::int64_t n = 0; n < rows; ++n) {
    float* const image = batch.images.data<float>() + 144 * n;
    float* const there = batch.targets.data<float>() + 3 * n;
    for (int thing = 0; thing < 3; ++thing) there[thing] = static_cast<float>(random.below(2));
    const std::uint32_t row = random.below(12), column = random.below(12);
    for (std::uint32_t i = 0; i < 12; ++i) {
      if (there[0] == 1) image[12 * row + i] = 1;
      if (there[1] == 1) image[12 * i + column] = 1;
      if (there[2] == 1 && i < 9) image[12 * (i / 3) + i % 3] = 1;
    }
  }
  return batch;
}

int main() {
  dp::ModelBuilder m("which_things", {1, 12, 12});
  const auto x = m.relu(m.linear("fc1", m.flatten(m.input()), {.out_features = 128}));
  const dp::Model model = m.build(m.linear("fc2", x, {.out_features = 3}));

  dp::DataParallel net(model, {.devices = dp::cpus(2), .output_loss = dp::BceWithLogitsLoss{}});
  for (std::uint64_t step = 0; step < 600; ++step) net.train_step(things(128, step), dp::Adam{.lr = 2e-3f});

  const dp::Batch test = things(1000, 1000);
  const dp::Tensor& logits = net.predict(test.images);  // (1000, 3); above 0: probability above a half
  double both = 0, found = 0, there = 0;
  for (std::int64_t i = 0; i < logits.numel(); ++i) {
    const bool yes = logits.data<float>()[i] > 0, is = test.targets.data<float>()[i] == 1;
    both += yes && is, found += yes, there += is;
  }
  const double f1 = 2 * both / (found + there);
  std::printf("F1 score of 3000 decisions: %.3f\n", f1);
  return f1 > 0.9 ? 0 : 1;
}
