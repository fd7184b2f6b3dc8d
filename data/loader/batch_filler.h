// Turns samples of a dataset into a batch: augmented, normalised, float32.
#pragma once

#include <array>
#include <atomic>
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

  std::size_t image_bytes() const { return static_cast<std::size_t>(channels_ * rows_ * columns_); }

  // Fills batch.labels and .samples for batch.size() == samples.size(), and .images unless they are kept: then it says by which key
  // they are made. `scratch` holds image_bytes() and is
  // the calling thread's own. Returns early, with an incomplete batch, once `cancelled`. Error(data) for a label that contradicts its
  // dataset's class count.
  void fill(Batch& batch, std::span<const std::int64_t> samples, std::int64_t epoch, std::span<std::uint8_t> scratch,
            const std::atomic<bool>& cancelled) const;

 private:
  void copy_image(const std::uint8_t* in, float* out) const;
  void copy_augmented(const std::uint8_t* in, Random& random, float* out) const;

  const Dataset& dataset_;
  std::int64_t channels_, rows_, columns_, classes_;
  bool augment_;
  Augmentation augmentation_;
  std::uint64_t seed_;
  std::vector<std::array<float, 256>> table_;  // normalised value of every byte, per channel
};

}  // namespace dp
