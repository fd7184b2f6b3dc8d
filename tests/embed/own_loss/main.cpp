#include <dp/loader.h>
#include <dp/loss.h>
#include <dp/train_main.h>

// The multi-class hinge loss: each class should have an output below that of the label by at least 1. The mean over the
// batch, and its gradient by the outputs.
dp::Loss hinge(const dp::Tensor& outputs, const dp::Batch& batch) {
  const std::int64_t rows = outputs.shape()[0], classes = outputs.shape()[1];
  dp::Loss loss{0, dp::Tensor(outputs.shape())};
  for (std::int64_t n = 0; n < rows; ++n) {
    const float* const row = outputs.data<float>() + n * classes;
    float* const grad = loss.grad.data<float>() + n * classes;
    const std::int32_t label = batch.labels.data<std::int32_t>()[n];
    for (std::int32_t k = 0; k < classes; ++k) {
      const float above = 1 + row[k] - row[label];
      if (k == label || above <= 0) continue;
      loss.value += above / static_cast<double>(rows);
      grad[k] += 1 / static_cast<float>(rows);
      grad[label] -= 1 / static_cast<float>(rows);
    }
  }
  return loss;
}

int main(int argc, char** argv) {
  dp::losses::add({"hinge", "multi-class hinge loss", hinge});
  return dp::train_main(argc, argv);
}
