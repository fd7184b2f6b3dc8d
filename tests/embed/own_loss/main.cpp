#include <dp/dp.h>

#include <cstdio>

// The multi-class hinge loss: each class should have a logit below that of the label by at least 1. The mean over the
// batch, and its gradient by the logits.
dp::Loss hinge(const dp::Tensor& logits, const dp::Tensor& labels) {
  const std::int64_t batch = logits.shape()[0], classes = logits.shape()[1];
  dp::Loss loss{0, dp::Tensor(logits.shape())};
  for (std::int64_t n = 0; n < batch; ++n) {
    const float* const row = logits.data<float>() + n * classes;
    float* const grad = loss.grad.data<float>() + n * classes;
    const std::int32_t label = labels.data<std::int32_t>()[n];
    for (std::int32_t k = 0; k < classes; ++k) {
      const float above = 1 + row[k] - row[label];
      if (k == label || above <= 0) continue;
      loss.value += above / static_cast<double>(batch);
      grad[k] += 1 / static_cast<float>(batch);
      grad[label] -= 1 / static_cast<float>(batch);
    }
  }
  return loss;
}

int main() {
  const dp::DatasetPair digits = dp::datasets::digits(2048, 512);
  dp::Loader train(digits.train, {.batch_size = 64}), test(digits.test, {.batch_size = 128, .shuffle = false});

  dp::DataParallel net(dp::models::mnist_convnet(), {.devices = dp::cpus(2)});
  double last = 0;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch)
    for (const dp::Batch& batch : train.epoch(epoch)) {
      const dp::Tensor logits = net.forward(batch.images).clone();  // (64, 10), gathered, in host memory
      const dp::Loss loss = hinge(logits, batch.labels);
      net.backward(loss.grad);
      net.step(dp::Sgd{.lr = 0.02f, .momentum = 0.9f});
      last = loss.value;
    }

  for (const dp::Batch& batch : test.epoch(0)) net.evaluate(batch);
  const double top1 = net.take_stats().accuracy1();
  std::printf("last training loss %.3f, top-1 %.1f %%\n", last, top1);
  return top1 > 80 ? 0 : 1;
}
