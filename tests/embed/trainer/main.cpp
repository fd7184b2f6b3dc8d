#include <dp/dp.h>

int main() {
  dp::TrainerOptions options{.epochs = 1, .batch_size = 64};
  options.parallel.devices = dp::cpus(2);
  dp::Trainer trainer(dp::models::mnist_convnet(), dp::datasets::digits(2048, 512), options);
  const dp::RunSummary summary = trainer.run(dp::console_callbacks());
  dp::print_summary(summary);
  return summary.top1 > 50 ? 0 : 1;
}
