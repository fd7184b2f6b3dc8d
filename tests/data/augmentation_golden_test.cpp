// Operations and policies against values from torchvision.transforms.v2 (golden/make_augmentations.py), bit for bit.
#include <map>
#include <sstream>

#include "data/augment/policies.h"
#include "dp/checkpoint.h"
#include "support/catch.h"

namespace {

using dp::Interpolation;
using dp::Operation;
using dp::Planes;
using Bytes = std::vector<std::uint8_t>;
using Words = std::vector<std::string>;

const std::map<std::string, dp::Tensor>& golden() {
  static const auto tensors = [] {
    std::map<std::string, dp::Tensor> all;
    for (auto& [name, tensor] : dp::read_safetensors(DP_GOLDEN_AUGMENTATIONS)) all.emplace(name, tensor);
    return all;
  }();
  return tensors;
}

Words split(const std::string& text, char at) {
  Words words;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, at);) words.push_back(word);
  return words;
}

Operation operation_of(const std::string& name) {
  const auto found = std::find(dp::kOperationNames.begin(), dp::kOperationNames.end(), name);
  REQUIRE(found != dp::kOperationNames.end());
  return static_cast<Operation>(found - dp::kOperationNames.begin());
}

Interpolation mode_of(const Words& words) {
  return words.back() == "nearest" ? Interpolation::nearest : Interpolation::bilinear;
}

void mix(const Planes& image, const std::vector<double>& weights) {
  const auto weight = [&](std::size_t i) { return static_cast<float>(weights.at(i)); };
  std::vector<float> sum(static_cast<std::size_t>(image.size()));
  dp::begin_mix(image, weight(0), sum.data());
  const Bytes original(image.bytes, image.bytes + image.size());
  for (std::size_t chain = 0; chain < 3; ++chain) {
    std::copy(original.begin(), original.end(), image.bytes);
    if (chain == 0) dp::solarize(image, 127.5);
    if (chain == 1) dp::equalize(image);
    if (chain == 2) dp::posterize(image, 3);
    dp::add_to_mix(image, weight(1 + chain) * (1.0f - weight(0)), sum.data());
  }
  dp::end_mix(sum.data(), image);
}

// Applies what a result's name says.
Bytes result(const dp::Tensor& from, const std::string& what, const Words& words) {
  const dp::Shape shape = from.shape();
  Bytes bytes(from.data<std::uint8_t>(), from.data<std::uint8_t>() + from.numel()), other = bytes;
  const Planes image{bytes.data(), shape[0], shape[1], shape[2]};
  std::vector<double> values;
  for (const std::string& word : words)
    if (word != "nearest" && word != "bilinear") values.push_back(std::stod(word));
  const auto whole = [&](std::size_t i) { return static_cast<std::int64_t>(values.at(i)); };
  if (what == "brightness") return dp::adjust_brightness(image, values.at(0)), bytes;
  if (what == "contrast") return dp::adjust_contrast(image, values.at(0)), bytes;
  if (what == "saturation") return dp::adjust_saturation(image, values.at(0)), bytes;
  if (what == "hue") return dp::adjust_hue(image, values.at(0)), bytes;
  if (what == "posterize") return dp::posterize(image, static_cast<int>(values.at(0))), bytes;
  if (what == "solarize") return dp::solarize(image, values.at(0)), bytes;
  if (what == "autocontrast") return dp::autocontrast(image), bytes;
  if (what == "equalize") return dp::equalize(image), bytes;
  if (what == "invert") return dp::invert(image), bytes;
  if (what == "sharpness") return dp::adjust_sharpness(image, values.at(0), other.data()), other;
  if (what == "mix") return mix(image, values), bytes;
  if (what == "erase") {
    dp::erase(bytes.data(), shape[0], image.pixels(), shape[2], {whole(0), whole(1), whole(2), whole(3)});
    return bytes;
  }
  if (what == "affine") {
    dp::affine(image, {values.at(0), values.at(1), values.at(2), values.at(3), values.at(4), values.at(5) != 0},
               mode_of(words), other.data());
    return other;
  }
  dp::apply(image, operation_of(what), values.at(0), mode_of(words), other.data());
  return bytes;
}

}  // namespace

TEST_CASE("operations on images have torchvision's bits") {
  std::map<std::string, int> compared;
  for (const auto& [name, tensor] : golden()) {
    if (name.starts_with("image|") || name.starts_with("magnitudes|")) continue;
    INFO(name);
    const Words parts = split(name, '|');
    const Bytes ours =
        result(golden().at("image|" + parts.at(0)), parts.at(1), split(parts.size() > 2 ? parts[2] : "", ','));
    const auto theirs = tensor.span<std::uint8_t>();
    REQUIRE(ours.size() == theirs.size());
    int largest = 0, unequal = 0;
    for (std::size_t i = 0; i < ours.size(); ++i) {
      largest = std::max(largest, std::abs(ours[i] - theirs[i]));
      unequal += ours[i] != theirs[i];
    }
    CHECK(unequal == 0);
    CHECK(largest == 0);
    ++compared[parts.at(1)];
  }
  CHECK(compared.size() == 13 + dp::kOperationNames.size());
  CHECK(compared["affine"] == 7 * 16);
}

TEST_CASE("magnitudes of the policies are torchvision's, with their signs") {
  const std::map<std::string, dp::AutoAugment> policies{
      {"ra", dp::AutoAugment::ra}, {"ta_wide", dp::AutoAugment::ta_wide}, {"augmix", dp::AutoAugment::augmix}};
  int compared = 0;
  for (const auto& [name, tensor] : golden()) {
    if (!name.starts_with("magnitudes|")) continue;
    INFO(name);
    const Words parts = split(name, '|');
    const auto theirs = tensor.span<double>();
    for (std::size_t bin = 0; bin < theirs.size(); ++bin)
      CHECK(dp::magnitude_of(policies.at(parts.at(1)), operation_of(parts.at(2)), static_cast<int>(bin), 224, 200) ==
            theirs[bin]);
    dp::Augmentation augmentation{.auto_augment = policies.at(parts.at(1)), .ra_magnitude = 30, .augmix_severity = 10};
    bool below_zero = false;
    dp::Random random(1, dp::RandomUse::augment);
    for (int draws = 0; draws < 300; ++draws) {
      const dp::Drawn drawn = dp::draw_operation(augmentation, 224, 200, random);
      below_zero = below_zero || (drawn.operation == operation_of(parts.at(2)) && drawn.magnitude < 0);
    }
    CHECK(below_zero == (parts.at(3) == "signed"));
    ++compared;
  }
  CHECK(compared == 14 + 14 + 13);
}
