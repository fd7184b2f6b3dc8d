// A data set with one sample that cannot be read.
#pragma once

#include <memory>
#include <utility>

#include "dp/dataset.h"
#include "dp/error.h"

namespace dp::test {

class SpoiledDataset final : public Dataset {
 public:
  static constexpr const char* kFault = "a/7.jpg: the JPEG data end too early";
  SpoiledDataset(std::shared_ptr<const Dataset> whole, std::int64_t spoiled)
      : whole_(std::move(whole)), spoiled_(spoiled) {}
  std::int64_t size() const override { return whole_->size(); }
  Shape image_shape() const override { return whole_->image_shape(); }
  std::int64_t classes() const override { return whole_->classes(); }
  const Normalization& normalization() const override { return whole_->normalization(); }
  std::int32_t label(std::int64_t index) const override { return whole_->label(index); }
  void read(std::int64_t index, std::span<std::uint8_t> out, Random* random) const override {
    if (index == spoiled_) throw Error(ErrorCode::data, kFault);
    whole_->read(index, out, random);
  }
  Augmentation augmentation() const override { return whole_->augmentation(); }
  bool varies() const override { return whole_->varies(); }

 private:
  std::shared_ptr<const Dataset> whole_;
  std::int64_t spoiled_;
};

}  // namespace dp::test
