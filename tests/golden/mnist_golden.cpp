#include "golden/mnist_golden.h"

#include <numeric>

#include "dp/random.h"

namespace dp::test {

std::vector<std::vector<double>> golden_initial_weights(const Model& model) {
  std::vector<std::vector<double>> weights;
  for (const ParameterSpec& parameter : model.parameters()) {
    Random random(kGoldenSeed, RandomUse::init, weights.size());
    std::vector<double> values(static_cast<std::size_t>(parameter.shape.numel()));
    for (double& value : values) value = random.uniform(-parameter.init.value, parameter.init.value);
    weights.push_back(std::move(values));
  }
  return weights;
}

Batch golden_batch(int step) {
  const auto number = static_cast<std::uint64_t>(step);
  Batch batch{Tensor({kGoldenBatch, 1, 28, 28}), Tensor({kGoldenBatch}, DType::i32),
              Tensor({kGoldenBatch}, DType::i64)};
  Random images(kGoldenSeed, RandomUse::synthetic, number), labels(kGoldenSeed, RandomUse::synthetic, number, 1);
  for (float& value : batch.images.span<float>()) value = images.uniform(-1, 1);
  for (std::int32_t& label : batch.labels.span<std::int32_t>()) label = static_cast<std::int32_t>(labels.below(10));
  const auto samples = batch.samples.span<std::int64_t>();
  std::iota(samples.begin(), samples.end(), step * kGoldenBatch);
  return batch;
}

}  // namespace dp::test
