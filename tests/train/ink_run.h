// A small training run with targets.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "train/tiny_run.h"

namespace dp::test {

// The digits with two targets each: how much ink the upper and the lower half of the image have, or whether it is much.
class Ink final : public Dataset {
 public:
  Ink(std::shared_ptr<const Dataset> digits, bool decided) : digits_(std::move(digits)), decided_(decided) {}
  std::int64_t size() const override { return digits_->size(); }
  Shape image_shape() const override { return digits_->image_shape(); }
  std::int64_t classes() const override { return 2; }
  const Normalization& normalization() const override { return digits_->normalization(); }
  std::int32_t label(std::int64_t) const override { return 0; }
  bool has_targets() const override { return true; }
  void targets(std::int64_t index, std::span<float> out) const override {
    const std::vector<std::uint8_t> image = digits_->image(index);
    out[0] = out[1] = 0;
    for (std::size_t i = 0; i < image.size(); ++i) out[2 * i / image.size()] += static_cast<float>(image[i]) / 25500;
    for (float& ink : out)
      if (decided_) ink = ink > 0.5f ? 1 : 0;
  }
  void read(std::int64_t index, std::span<std::uint8_t> out, Random* random) const override {
    digits_->read(index, out, random);
  }
  bool varies() const override { return false; }

 private:
  std::shared_ptr<const Dataset> digits_;
  bool decided_;
};

inline DatasetPair ink(bool decided = false) {
  return {std::make_shared<Ink>(tiny_digits().train, decided), std::make_shared<Ink>(tiny_digits().test, decided)};
}

inline Model ink_model() {
  ModelBuilder m("ink", Shape{1, 28, 28});
  return m.build(m.linear("fc", m.flatten(m.input()), {.out_features = 2}));
}

inline TrainerOptions ink_options(const std::string& folder = "") {
  TrainerOptions options = tiny_options(folder);
  options.optimizer = Sgd{.lr = 1e-4f};
  options.parallel.output_loss = MseLoss{};
  options.dataset_name = "ink";
  return options;
}

}  // namespace dp::test
