#include <dp/train_main.h>
#include <dp/trainer.h>

#include <vector>

// The mean over the classes of the share of their images that are recognised: rare classes count as much as others.
double balanced_accuracy(const dp::EvaluatedLogits& evaluated) {
  const std::int64_t classes = evaluated.logits.shape()[1];
  std::vector<double> right(static_cast<std::size_t>(classes)), all(right.size());
  for (std::size_t n = 0; n < evaluated.labels.size(); ++n) {
    const float* const row = evaluated.logits.data<float>() + static_cast<std::int64_t>(n) * classes;
    std::int64_t best = 0;
    for (std::int64_t k = 1; k < classes; ++k)
      if (row[k] > row[best]) best = k;
    const auto label = static_cast<std::size_t>(evaluated.labels[n]);
    right[label] += best == evaluated.labels[n] ? 1 : 0;
    all[label] += 1;
  }
  double sum = 0, present = 0;
  for (std::size_t k = 0; k < all.size(); ++k)
    if (all[k] > 0) sum += right[k] / all[k], present += 1;
  return present > 0 ? 100 * sum / present : 0;
}

int main(int argc, char** argv) {
  dp::metrics::add({"balanced_accuracy", balanced_accuracy});
  return dp::train_main(argc, argv);
}
