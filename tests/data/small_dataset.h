// A dataset of a few small images that can fail at chosen samples.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "dp/dataset.h"
#include "dp/loader.h"
#include "dp/random.h"

namespace dp::test {

class SmallDataset : public Dataset {
 public:
  explicit SmallDataset(std::int64_t size, const Shape& shape = Shape{1, 3, 4})
      : shape_(shape), size_(size), pixels_(static_cast<std::size_t>(size * shape.numel())) {
    Random random(9, RandomUse::synthetic);
    for (std::uint8_t& byte : pixels_) byte = static_cast<std::uint8_t>(random.next());
    const auto channels = static_cast<std::size_t>(shape[0]);
    normalization_.mean.assign(channels, 0.25f);
    normalization_.std.assign(channels, 0.5f);
  }

  std::int64_t size() const override { return size_; }
  Shape image_shape() const override { return shape_; }
  std::int64_t classes() const override { return 10; }
  const Normalization& normalization() const override { return normalization_; }
  void read(std::int64_t index, std::span<std::uint8_t> out, Random*) const override {
    if (throwing.count(index)) throw std::runtime_error("sample " + std::to_string(index) + " is broken");
    if (slow.count(index)) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::copy_n(pixels_.begin() + index * shape_.numel(), shape_.numel(), out.begin());
  }
  Augmentation augmentation() const override { return augmentation_; }
  std::int32_t label(std::int64_t index) const override {
    return index == bad_label ? bad_value : static_cast<std::int32_t>(index % 10);
  }

  // Set these before a loader uses the dataset.
  std::set<std::int64_t> throwing, slow;
  std::int64_t bad_label = -1;
  std::int32_t bad_value = 10;  // the label of sample bad_label
  Normalization normalization_;
  Augmentation augmentation_{.padding = 4, .flip = Flip::random};

 private:
  Shape shape_;
  std::int64_t size_;
  std::vector<std::uint8_t> pixels_;
};

// A copy of a batch from the loader's ring.
struct BatchCopy {
  explicit BatchCopy(const Batch& batch)
      : images(batch.images.span<float>().begin(), batch.images.span<float>().end()),
        labels(batch.labels.span<std::int32_t>().begin(), batch.labels.span<std::int32_t>().end()),
        samples(batch.samples.span<std::int64_t>().begin(), batch.samples.span<std::int64_t>().end()) {}
  friend bool operator==(const BatchCopy&, const BatchCopy&) = default;

  std::vector<float> images;
  std::vector<std::int32_t> labels;
  std::vector<std::int64_t> samples;
};

// The remaining batches of the started epoch.
inline std::vector<BatchCopy> rest(Loader& loader) {
  std::vector<BatchCopy> batches;
  while (const Batch* batch = loader.next()) batches.emplace_back(*batch);
  return batches;
}

inline std::vector<BatchCopy> whole(Loader& loader, std::int64_t epoch) {
  loader.start(epoch);
  return rest(loader);
}

inline std::vector<std::int64_t> samples_of(const std::vector<BatchCopy>& batches) {
  std::vector<std::int64_t> samples;
  for (const BatchCopy& batch : batches) samples.insert(samples.end(), batch.samples.begin(), batch.samples.end());
  return samples;
}

}  // namespace dp::test
