// A dataset in host memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dp/dataset.h"

namespace dp {

class MemoryDataset final : public Dataset {
 public:
  // pixels: size() contiguous images of image_shape. The caller has checked sizes and label range.
  MemoryDataset(const Shape& image_shape, std::int64_t classes, Normalization normalization,
                std::vector<std::uint8_t> pixels, std::vector<std::int32_t> labels, Augmentation augmentation = {},
                std::vector<std::string> names = {})
      : shape_(image_shape),
        classes_(classes),
        normalization_(std::move(normalization)),
        image_bytes_(static_cast<std::size_t>(image_shape.numel())),
        pixels_(std::move(pixels)),
        labels_(std::move(labels)),
        augmentation_(augmentation),
        names_(std::move(names)) {}

  std::int64_t size() const override { return static_cast<std::int64_t>(labels_.size()); }
  Shape image_shape() const override { return shape_; }
  std::int64_t classes() const override { return classes_; }
  std::vector<std::string> class_names() const override { return names_; }
  const Normalization& normalization() const override { return normalization_; }
  std::int32_t label(std::int64_t index) const override { return labels_[static_cast<std::size_t>(index)]; }
  void read(std::int64_t index, std::span<std::uint8_t> out, Random*) const override {
    std::copy_n(pixels_.data() + static_cast<std::size_t>(index) * image_bytes_, image_bytes_, out.data());
  }
  Augmentation augmentation() const override { return augmentation_; }
  bool varies() const override { return false; }

 private:
  Shape shape_;
  std::int64_t classes_;
  Normalization normalization_;
  std::size_t image_bytes_;
  std::vector<std::uint8_t> pixels_;
  std::vector<std::int32_t> labels_;
  Augmentation augmentation_;
  std::vector<std::string> names_;
};

}  // namespace dp
