// Training from host batches must give the same bits as training from a device-resident data set.
#pragma once

#include "support/catch.h"
#include "support/training.h"

namespace dp::test {

// Random pixels; augmented by padding and flipping.
class RandomImages final : public Dataset {
 public:
  RandomImages(const Shape& image, std::int64_t classes, std::int64_t size)
      : shape_(image),
        classes_(classes),
        size_(size),
        normalization_{std::vector<float>(static_cast<std::size_t>(image[0]), 0.45f),
                       std::vector<float>(static_cast<std::size_t>(image[0]), 0.27f)} {}
  std::int64_t size() const override { return size_; }
  Shape image_shape() const override { return shape_; }
  std::int64_t classes() const override { return classes_; }
  const Normalization& normalization() const override { return normalization_; }
  Augmentation augmentation() const override { return {.padding = 2, .flip = Flip::random}; }
  bool varies() const override { return false; }
  std::int32_t label(std::int64_t index) const override { return static_cast<std::int32_t>(index % classes_); }
  void read(std::int64_t index, std::span<std::uint8_t> out, Random*) const override {
    Random random(5, RandomUse::synthetic, static_cast<std::uint64_t>(index));
    for (std::uint8_t& byte : out) byte = static_cast<std::uint8_t>(random.below(256));
  }

 private:
  Shape shape_;
  std::int64_t classes_, size_;
  Normalization normalization_;
};

struct Trained {
  std::vector<NamedTensor> weights;
  Stats training, test;
};

// Two epochs, each with a short last batch, then an evaluation. `keep` selects the device-resident data set.
inline Trained train_two_epochs(const Model& model, const DataParallelOptions& options, bool keep) {
  const auto data = std::make_shared<RandomImages>(model.input(), model.output()[0], 21);
  LoaderOptions loading{.batch_size = 8, .augment = true, .seed = 9, .workers = 2};
  if (keep) loading.resident = read_images(*data, 3);
  Loader train(data, loading);
  loading.shuffle = loading.augment = false;
  Loader test(data, loading);
  DataParallel net(model, options);
  net.prepare(train.batch_sizes(), test.batch_sizes(), train.resident(), test.resident());
  for (const std::int64_t epoch : {0, 1})
    for (const Batch& batch : train.epoch(epoch)) {
      REQUIRE(batch.images.empty() == keep);
      net.train_step(batch, Sgd{.lr = 0.05f, .momentum = 0.9f});
    }
  Trained trained;
  trained.training = net.take_stats();
  for (const Batch& batch : test.epoch(0)) net.evaluate(batch);
  trained.test = net.take_stats();
  trained.weights = net.weights();
  return trained;
}

inline void check_resident_images(const Model& model, const DataParallelOptions& options) {
  const Trained uploaded = train_two_epochs(model, options, false), resident = train_two_epochs(model, options, true);
  CHECK(bit_equal(uploaded.weights, resident.weights));
  CHECK(uploaded.training.loss_sum == resident.training.loss_sum);
  CHECK(uploaded.test.loss_sum == resident.test.loss_sum);
  CHECK(uploaded.test.samples == 21);
  CHECK(resident.test.samples == 21);
}

}  // namespace dp::test
