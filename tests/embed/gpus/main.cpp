#include <dp/dp.h>

#include <cstdio>

int main() try {
  dp::DataParallel net(dp::models::mlp(), {});  // a replica on each GPU
  for (const std::string& name : net.device_names()) std::printf("replica on %s\n", name.c_str());
  dp::Loader train(dp::datasets::digits(256, 16).train, {.batch_size = 64});
  for (const dp::Batch& batch : train.epoch(0)) net.train_step(batch, dp::Sgd{.lr = 0.05f});
  std::printf("loss %.3f\n", net.take_stats().loss());
} catch (const dp::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return static_cast<int>(error.code());
}
