// Shuffles the samples of an epoch and fills batches with them.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "dp/dataset.h"
#include "dp/loader.h"

namespace dp {

// The sample order of an epoch, keyed by (seed, epoch) only. Fills `order`, whose size is that of the data set (at most
// 2^32-1), with sample indices. A sample that occurs again is its index plus the size for each time before. `balanced`:
// the data set whose classes occur equally often; null: each sample occurs once, or `repeats` times.
void fill_order(std::span<std::int64_t> order, const LoaderOptions& options, const Dataset* balanced,
                std::int64_t epoch);

// Per channel: the normalised value of each byte.
using NormalisedBytes = std::vector<std::array<float, 256>>;
NormalisedBytes normalised_bytes(const Normalization& normalization);
// Normalises an image of planes of `plane` bytes, one for each channel of the table. Returns the end of what it wrote.
float* normalise(const std::uint8_t* image, std::int64_t plane, const NormalisedBytes& table, float* out);

// Fills a batch with samples of a dataset: augmented, normalised, float32.
// Immutable after construction and shared by all loader threads. fill() allocates nothing.
class BatchFiller {
 public:
  // Borrows `dataset`. Error(usage) when its normalisation or its augmentation does not fit its images.
  BatchFiller(const Dataset& dataset, bool augment, std::uint64_t seed);

  // Of a thread that fills batches.
  std::size_t scratch_bytes() const { return scratch_bytes_; }

  // Fills batch.labels, batch.samples and the augmentation key in batch.resident. Fills batch.images too, unless the
  // images are device-resident (batch.resident.set). batch.size() must equal samples.size(). `scratch` has
  // scratch_bytes() bytes, aligned as float, and belongs to the calling thread. Returns early, with an incomplete
  // batch, once `cancelled` is set. Error(data) for a label outside the dataset's classes.
  void fill(Batch& batch, std::span<const std::int64_t> samples, std::int64_t epoch, std::span<std::uint8_t> scratch,
            const std::atomic<bool>& cancelled) const;

 private:
  // Of an image's random numbers. `sample`: as in the order of samples.
  struct Key {
    std::int64_t epoch, sample;
  };
  std::size_t image_bytes() const { return static_cast<std::size_t>(channels_ * rows_ * columns_); }
  void copy_augmented(const Key& key, std::span<std::uint8_t> scratch, float* out) const;

  const Dataset& dataset_;
  std::int64_t channels_, rows_, columns_, classes_;
  bool augment_;
  Augmentation augmentation_;
  bool changes_bytes_ = false;
  std::size_t spare_bytes_ = 0, scratch_bytes_ = 0;
  std::uint64_t seed_;
  NormalisedBytes table_;
};

}  // namespace dp
