// Base class of data sets that wrap another one: every member calls the wrapped data set unless it is overridden.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dp/dataset.h"

namespace dp {

class ForwardedDataset : public Dataset {
 public:
  explicit ForwardedDataset(std::shared_ptr<const Dataset> whole) : whole_(std::move(whole)) {}

  std::int64_t size() const override { return whole_->size(); }
  Shape image_shape() const override { return whole_->image_shape(); }
  std::int64_t classes() const override { return whole_->classes(); }
  std::vector<std::string> class_names() const override { return whole_->class_names(); }
  const Normalization& normalization() const override { return whole_->normalization(); }
  std::int32_t label(std::int64_t index) const override { return whole_->label(index); }
  void read(std::int64_t index, std::span<std::uint8_t> out, Random* random) const override {
    whole_->read(index, out, random);
  }
  Augmentation augmentation() const override { return whole_->augmentation(); }
  bool varies() const override { return whole_->varies(); }
  std::string sample_id(std::int64_t index) const override { return whole_->sample_id(index); }
  std::vector<std::pair<std::string, std::int64_t>> passed_over() const override { return whole_->passed_over(); }
  std::optional<std::vector<std::string>> replaced() const override { return whole_->replaced(); }
  std::size_t bytes_to_cache() const override { return whole_->bytes_to_cache(); }
  std::size_t bytes_to_read() const override { return whole_->bytes_to_read(); }

 protected:
  const Dataset& whole() const { return *whole_; }

 private:
  std::shared_ptr<const Dataset> whole_;
};

}  // namespace dp
