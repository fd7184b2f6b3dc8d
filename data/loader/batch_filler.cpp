#include "data/loader/batch_filler.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "dp/error.h"
#include "dp/random.h"

namespace dp {

void fill_order(std::span<std::int64_t> order, bool shuffle, std::uint64_t seed, std::int64_t epoch) {
  std::iota(order.begin(), order.end(), 0);
  if (!shuffle) return;
  Random random(seed, RandomUse::shuffle, static_cast<std::uint64_t>(epoch));
  for (std::size_t left = order.size(); left > 1; --left)
    std::swap(order[left - 1], order[random.below(static_cast<std::uint32_t>(left))]);
}

BatchFiller::BatchFiller(const Dataset& dataset, bool augment, std::uint64_t seed)
    : dataset_(dataset),
      classes_(dataset.classes()),
      augment_(augment),
      augmentation_(dataset.augmentation()),
      seed_(seed) {
  const Shape shape = dataset.image_shape();
  if (shape.rank() != 3)
    throw Error(ErrorCode::usage,
                "a loader requires images of shape (C,H,W), but the data set's are " + to_string(shape));
  channels_ = shape[0];
  rows_ = shape[1];
  columns_ = shape[2];
  if (augmentation_.padding < 0)
    throw Error(ErrorCode::usage, "the padding of the augmentation is " + std::to_string(augmentation_.padding) +
                                      " pixels; give 0 or more");
  const Normalization& normalization = dataset.normalization();
  const auto channels = static_cast<std::size_t>(channels_);
  if (normalization.mean.size() != channels || normalization.std.size() != channels ||
      !std::all_of(normalization.std.begin(), normalization.std.end(), [](float std) { return std > 0; }))
    throw Error(ErrorCode::usage, "a dataset of " + std::to_string(channels_) +
                                      " channels needs as many means and positive deviations to be normalised");
  table_.resize(channels);
  for (std::size_t c = 0; c < channels; ++c)
    for (std::size_t byte = 0; byte < 256; ++byte)  // rounds like torchvision's transforms, step by step
      table_[c][byte] = (static_cast<float>(byte) / 255.0f - normalization.mean[c]) / normalization.std[c];
}

void BatchFiller::fill(Batch& batch, std::span<const std::int64_t> samples, std::int64_t epoch,
                       std::span<std::uint8_t> scratch, const std::atomic<bool>& cancelled) const {
  const bool resident = batch.resident.set != nullptr;
  batch.resident.augment = augment_;
  batch.resident.seed = seed_;
  batch.resident.epoch = static_cast<std::uint64_t>(epoch);
  float* out = resident ? nullptr : batch.images.data<float>();
  auto* labels = batch.labels.data<std::int32_t>();
  auto* indices = batch.samples.data<std::int64_t>();
  for (const std::int64_t sample : samples) {
    if (cancelled) return;
    const std::int32_t label = dataset_.label(sample);
    if (label < 0 || label >= classes_)
      throw Error(ErrorCode::data, "sample " + std::to_string(sample) + " has label " + std::to_string(label) +
                                       ", but the dataset has " + std::to_string(classes_) +
                                       " classes; correct the dataset");
    if (resident) {
      // The device makes the image from its resident bytes.
    } else if (augment_) {
      Random random(seed_, RandomUse::augment, static_cast<std::uint64_t>(epoch), static_cast<std::uint64_t>(sample));
      dataset_.read(sample, scratch, &random);
      copy_augmented(scratch.data(), random, out);
    } else {
      dataset_.read(sample, scratch, nullptr);
      copy_image(scratch.data(), out);
    }
    if (!resident) out += scratch.size();
    *labels++ = label;
    *indices++ = sample;
  }
}

void BatchFiller::copy_image(const std::uint8_t* in, float* out) const {
  for (const auto& table : table_) {
    const std::uint8_t* const end = in + rows_ * columns_;
    while (in != end) *out++ = table[*in++];
  }
}

// Pads with black, crops a random window of the original size, and flips horizontally with probability 1/2.
void BatchFiller::copy_augmented(const std::uint8_t* in, Random& random, float* out) const {
  const std::int64_t padding = augmentation_.padding;
  std::int64_t down = 0, right = 0;
  if (padding > 0) {
    const auto places = static_cast<std::uint32_t>(2 * padding + 1);
    down = static_cast<std::int64_t>(random.below(places)) - padding;
    right = static_cast<std::int64_t>(random.below(places)) - padding;
  }
  const bool flip = augmentation_.flip && random.below(2) == 1;
  if (down == 0 && right == 0 && !flip) return copy_image(in, out);
  for (const auto& table : table_) {
    for (std::int64_t y = 0; y < rows_; ++y) {
      const std::int64_t from_y = y + down;
      const bool row_inside = from_y >= 0 && from_y < rows_;
      for (std::int64_t x = 0; x < columns_; ++x) {
        const std::int64_t from_x = (flip ? columns_ - 1 - x : x) + right;
        const bool inside = row_inside && from_x >= 0 && from_x < columns_;
        *out++ = table[inside ? in[from_y * columns_ + from_x] : 0];
      }
    }
    in += rows_ * columns_;
  }
}

}  // namespace dp
