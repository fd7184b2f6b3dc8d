// Labelled images, and where they come from. Images are kept as bytes; the loader normalises.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dp/shape.h"

namespace dp {

// x -> (x/255 - mean) / std, per channel.
struct Normalization {
  std::vector<float> mean;
  std::vector<float> std;
};

// A data set held in host memory. Immutable, so that many loader threads may read it.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;  // number of samples
  virtual Shape image_shape() const = 0;  // (C,H,W)
  virtual std::int64_t classes() const = 0;
  virtual const Normalization& normalization() const = 0;
  virtual std::span<const std::uint8_t> image(std::int64_t index) const = 0;  // C*H*W bytes, planes
  virtual std::int32_t label(std::int64_t index) const = 0;                   // 0 .. classes-1
};

struct DatasetPair {
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> test;
};

namespace datasets {

// Stroke digits drawn from (seed, index): always there, 28x28, ten classes. Both parts are disjoint.
DatasetPair digits(std::int64_t train = 60000, std::int64_t test = 10000, std::uint64_t seed = 42);

// IDX files, plain or .gz, in `folder`, `folder/raw` or `folder/<Name>/raw`. Sizes, magic numbers and label
// range are checked before anything is allocated from them. Error(data) names path, offset and remedy.
DatasetPair mnist(const std::string& folder);
DatasetPair fashion_mnist(const std::string& folder);

// Random bytes and labels from (seed, index), computed when the set is made.
DatasetPair synthetic(const Shape& image, std::int64_t classes, std::int64_t train, std::int64_t test,
                      std::uint64_t seed = 42);

// By the name that the command line uses; Error(usage) listing the names for an unknown one.
DatasetPair open(std::string_view name, const std::string& folder, std::uint64_t seed = 42);
const std::vector<std::string>& names();

}  // namespace datasets
}  // namespace dp
