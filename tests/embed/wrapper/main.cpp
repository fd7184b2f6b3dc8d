#include <dp/dp.h>

#include <cstdio>

int main() {
  const dp::DatasetPair digits = dp::datasets::digits(2048, 512);
  dp::Loader train(digits.train, {.batch_size = 64}), test(digits.test, {.batch_size = 128, .shuffle = false});

  dp::DataParallel net(dp::models::mnist_convnet(), {.devices = dp::cpus(2)});
  const dp::Sgd sgd{.lr = 0.02f, .momentum = 0.9f};
  for (const dp::Batch& batch : train.epoch(0)) {
    const dp::Tensor& logits = net.forward(batch.images);  // gathered on the master
    const dp::Loss loss = dp::cross_entropy(logits, batch.labels);
    net.backward(loss.grad);  // scattered; gradients reduced over the replicas
    net.step(sgd);            // weights updated on every replica
  }

  for (const dp::Batch& batch : test.epoch(0)) net.evaluate(batch);
  const double top1 = net.take_stats().accuracy1();
  std::printf("top-1 after one epoch: %.1f %%\n", top1);
  return top1 > 50 ? 0 : 1;
}
