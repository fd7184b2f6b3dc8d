#include <numeric>

#include "dp/models.h"
#include "golden/golden_file.h"
#include "golden/mnist_golden.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::test;

}  // namespace

TEST_CASE("initial weights and batches equal the golden script's and lie within PyTorch's bounds") {
  const GoldenFile golden("mnist_steps.safetensors");
  const Model model = models::mnist_convnet();
  const auto weights = golden_initial_weights(model);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double sum = std::accumulate(weights[i].begin(), weights[i].end(), 0.0);
    INFO(model.parameters()[i].name);
    // Weights are up to 1/3. One float32 rounding, another order or another key exceeds this margin.
    CHECK(sum == Approx(golden.values("initial.sum." + model.parameters()[i].name).values[0]).epsilon(0).margin(1e-10));
  }
  const Batch batch = golden_batch(0);
  const std::vector<double> expected = golden.values("batch.sum").values;
  const auto images = batch.images.span<float>();
  const auto labels = batch.labels.span<std::int32_t>();
  CHECK(std::accumulate(images.begin(), images.end(), 0.0) == Approx(expected[0]).epsilon(0).margin(1e-9));
  CHECK(std::accumulate(labels.begin(), labels.end(), 0) == static_cast<int>(expected[1]));
}
