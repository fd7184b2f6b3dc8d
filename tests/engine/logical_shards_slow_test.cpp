// L2 on a full-size network: ResNet18 with augmented images.
#include "support/catch.h"
#include "support/training.h"

using namespace dp;
using namespace dp::test;

namespace {

class RandomImages final : public Dataset {
 public:
  std::int64_t size() const override { return 96; }
  Shape image_shape() const override { return {3, 32, 32}; }
  std::int64_t classes() const override { return 10; }
  const Normalization& normalization() const override { return normalization_; }
  Augmentation augmentation() const override { return {.padding = 4, .flip = Flip::random}; }
  std::int32_t label(std::int64_t index) const override { return static_cast<std::int32_t>(index % 10); }
  void read(std::int64_t index, std::span<std::uint8_t> out, Random*) const override {
    Random random(5, RandomUse::synthetic, static_cast<std::uint64_t>(index));
    for (std::uint8_t& byte : out) byte = static_cast<std::uint8_t>(random.below(256));
  }

 private:
  Normalization normalization_{{0.5f, 0.5f, 0.5f}, {0.25f, 0.25f, 0.25f}};
};

std::string digest_after_six_steps(int replicas, BatchNormMode mode, std::int64_t batch, int workers) {
  Loader loader(std::make_shared<RandomImages>(), {.batch_size = batch, .augment = true, .workers = workers});
  DataParallelOptions options = on_cpus(replicas);
  options.logical_shards = 8;
  options.batch_norm = mode;
  DataParallel net(models::resnet18(), options);
  int steps = 0;
  for (const Batch& each : loader.epoch(1)) {
    if (steps++ == 6) break;
    net.train_step(each, Sgd{.lr = 0.05f, .momentum = 0.9f, .weight_decay = 5e-4f});
  }
  return weights_sha256(net.weights());
}

}  // namespace

TEST_CASE("L2: six steps of ResNet18 with augmentation give one digest at 1, 2, 4 and 8 replicas in every mode") {
  for (const BatchNormMode mode : {BatchNormMode::master, BatchNormMode::pooled, BatchNormMode::sync})
    for (const std::int64_t batch : {16, 13}) {
      const std::string expected = digest_after_six_steps(1, mode, batch, 1);
      for (const int replicas : {2, 4, 8}) {
        INFO("mode " << static_cast<int>(mode) << ", batch " << batch << ", replicas " << replicas);
        CHECK(digest_after_six_steps(replicas, mode, batch, 2) == expected);
      }
    }
}
