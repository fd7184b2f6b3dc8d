#include "dp/dataset.h"
#include "dp/error.h"
#include "dp/random.h"

namespace dp {
namespace {

class Synthetic final : public Dataset {
 public:
  Synthetic(const Shape& image, std::int64_t classes, std::int64_t count, std::uint64_t seed, std::uint64_t part)
      : image_(image), classes_(classes), count_(count), seed_(seed), part_(part) {
    const auto channels = static_cast<std::size_t>(image[0]);
    normalization_ = {std::vector<float>(channels, 0.5f), std::vector<float>(channels, 0.2887f)};  // of uniform bytes
  }

  std::int64_t size() const override { return count_; }
  Shape image_shape() const override { return image_; }
  std::int64_t classes() const override { return classes_; }
  const Normalization& normalization() const override { return normalization_; }
  std::int32_t label(std::int64_t index) const override {
    Random random = stream(index);
    return draw_label(random);
  }
  void read(std::int64_t index, std::span<std::uint8_t> out, Random*) const override {
    Random random = stream(index);
    draw_label(random);
    std::uint32_t word = 0;
    for (std::size_t byte = 0; byte < out.size(); ++byte) {
      word = byte % 4 == 0 ? random.next() : word >> 8;
      out[byte] = static_cast<std::uint8_t>(word);
    }
  }
  bool varies() const override { return false; }

 private:
  Random stream(std::int64_t index) const {
    return Random(seed_, RandomUse::synthetic, static_cast<std::uint64_t>(index), part_);
  }
  std::int32_t draw_label(Random& random) const {
    return static_cast<std::int32_t>(random.below(static_cast<std::uint32_t>(classes_)));
  }

  Shape image_;
  std::int64_t classes_, count_;
  std::uint64_t seed_, part_;
  Normalization normalization_;
};

}  // namespace

namespace datasets {

DatasetPair synthetic(const Shape& image, std::int64_t classes, std::int64_t train, std::int64_t test,
                      std::uint64_t seed) {
  if (image.rank() != 3 || image.numel() == 0)
    throw Error(ErrorCode::usage, "synthetic: the image shape is " + to_string(image) +
                                      "; give channels, rows and columns, each at least 1");
  if (classes < 1 || classes > INT32_MAX || train < 0 || test < 0)
    throw Error(ErrorCode::usage, "synthetic: " + std::to_string(classes) + " classes, " + std::to_string(train) +
                                      " and " + std::to_string(test) +
                                      " images cannot be made; give 1 to 2147483647 classes and counts of 0 or more");
  return {std::make_shared<Synthetic>(image, classes, train, seed, 0),
          std::make_shared<Synthetic>(image, classes, test, seed, 1)};
}

}  // namespace datasets
}  // namespace dp
