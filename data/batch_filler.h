// Turns samples of a dataset into a batch: augmented, normalised, float32.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "dp/dataset.h"
#include "dp/loader.h"

namespace dp {

// Shared by all loader threads: nothing changes after construction, and fill allocates nothing.
class BatchFiller {
 public:
  // Borrows `dataset`. Error(usage) when its normalisation does not fit its images.
  BatchFiller(const Dataset& dataset, bool augment, std::uint64_t seed);

  // Fills batch.images, .labels and .samples for batch.size() == samples.size(). Error(data) for a sample that
  // contradicts its dataset's shape or class count.
  void fill(Batch& batch, std::span<const std::int64_t> samples, std::int64_t epoch) const;

 private:
  void copy_image(std::span<const std::uint8_t> image, float* out) const;
  void copy_augmented(std::span<const std::uint8_t> image, std::int64_t sample, std::int64_t epoch, float* out) const;

  const Dataset& dataset_;
  std::int64_t channels_, rows_, columns_, classes_;
  bool augment_;
  std::uint64_t seed_;
  std::vector<std::array<float, 256>> table_;  // normalised value of every byte, per channel
};

}  // namespace dp
