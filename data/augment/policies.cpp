#include "data/augment/policies.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "dp/error.h"
#include "dp/named_entries.h"
#include "dp/option_table.h"

namespace dp {

Augmentation changed(Augmentation augmentation, const Augmentation& changes) {
  const auto change = [](auto& value, const auto& to) {
    if (to) value = to;
  };
  change(augmentation.padding, changes.padding);
  change(augmentation.flip, changes.flip);
  change(augmentation.vflip, changes.vflip);
  change(augmentation.rotation, changes.rotation);
  change(augmentation.auto_augment, changes.auto_augment);
  change(augmentation.ra_ops, changes.ra_ops);
  change(augmentation.ra_magnitude, changes.ra_magnitude);
  change(augmentation.augmix_severity, changes.augmix_severity);
  change(augmentation.color_jitter, changes.color_jitter);
  change(augmentation.own, changes.own);
  change(augmentation.random_erase, changes.random_erase);
  change(augmentation.interpolation, changes.interpolation);
  return augmentation;
}

namespace {

constexpr std::int64_t kDefaultOps = 2, kDefaultMagnitude = 9, kDefaultSeverity = 3;
constexpr int kBins = 31, kAugMixBins = 10, kAugMixChains = 3;

AutoAugment policy_of(const Augmentation& augmentation) {
  return augmentation.auto_augment.value_or(AutoAugment::none);
}

}  // namespace

void require_valid(const Augmentation& a, const Shape& image) {
  const auto require = [](bool valid, const std::string& what) {
    if (!valid) throw Error(ErrorCode::usage, what);
  };
  const auto text = [](const auto& value) { return to_text(option_fields::value_of(value, {})); };
  const auto within = [&](const std::string& option, const auto& value, std::int64_t lowest, std::int64_t highest) {
    if (!value) return;
    const auto number = static_cast<double>(*value);
    require(number >= static_cast<double>(lowest) && number <= static_cast<double>(highest),
            option + " is " + text(value) + "; the augmentation needs a value from " + text(lowest) + " to " +
                text(highest));
  };
  within("--crop-padding", a.padding, 0, 4096);
  within("--rotation", a.rotation, 0, 180);
  within("--ra-ops", a.ra_ops, 1, 16);
  within("--ra-magnitude", a.ra_magnitude, 0, kBins - 1);
  within("--augmix-severity", a.augmix_severity, 1, kAugMixBins);
  within("--random-erase", a.random_erase, 0, 1);
  require(!a.own || a.own->function, "the augmentation '" + (a.own ? a.own->name : "") + "' has no function");
  const bool colours = image.rank() == 3 && (image[0] == 1 || image[0] == 3);
  require(colours || policy_of(a) == AutoAugment::none,
          "--auto-augment requires images of 1 or 3 channels, but the data set's are " + to_string(image));
  if (!a.color_jitter) return;
  const auto [brightness, contrast, saturation, hue] = *a.color_jitter;
  for (const float factor : {brightness, contrast, saturation})
    require(
        factor >= 0 && factor <= 100,
        "--color-jitter: the factors of brightness, contrast and saturation are from 0 to 100, not " + text(factor));
  require(hue >= 0 && hue <= 0.5f, "--color-jitter: the hue is from 0 to 0.5, not " + text(hue));
  require(colours, "--color-jitter requires images of 1 or 3 channels, but the data set's are " + to_string(image));
}

bool changes_bytes(const Augmentation& a) {
  return a.rotation.value_or(0) > 0 || policy_of(a) != AutoAugment::none ||
         a.color_jitter.value_or(ColorJitter{}) != ColorJitter{} || a.own;
}

std::string only_on_host(const Augmentation& a) {
  if (a.flip == Flip::alternating) return "--flip alternating";
  if (a.vflip.value_or(false)) return "--vflip";
  if (a.rotation.value_or(0) > 0) return "--rotation";
  if (policy_of(a) != AutoAugment::none) return "--auto-augment";
  if (a.own) return "--own-augmentation";
  if (changes_bytes(a)) return "--color-jitter";
  return a.random_erase.value_or(0) > 0 ? "--random-erase" : "";
}

bool alternates(std::uint64_t seed, std::int64_t epoch, std::int64_t sample) {
  Random random(seed, RandomUse::flip, 0, static_cast<std::uint64_t>(sample));
  return (static_cast<std::uint64_t>(epoch) + random.below(2)) % 2 == 1;
}

std::optional<Region> random_rectangle(std::int64_t rows, std::int64_t columns, Random& random) {
  const auto low = static_cast<float>(std::log(0.3)), high = static_cast<float>(std::log(3.3));
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double area = static_cast<double>(rows * columns) * double{random.uniform(0.02f, 0.33f)};
    const double ratio = std::exp(double{random.uniform(low, high)});
    const std::int64_t height = std::llrint(std::sqrt(area * ratio)), width = std::llrint(std::sqrt(area / ratio));
    if (height >= rows || width >= columns) continue;
    const std::int64_t top = random.below(static_cast<std::uint32_t>(rows - height + 1));
    const std::int64_t left = random.below(static_cast<std::uint32_t>(columns - width + 1));
    return Region{left, top, width, height};
  }
  return std::nullopt;
}

namespace {

// Value `i` of torch.linspace(begin, end, count).
double evenly(double begin, double end, int count, int i) {
  const auto first = static_cast<float>(begin), last = static_cast<float>(end);
  const float step = (last - first) / static_cast<float>(count - 1);
  return double{i < count / 2 ? std::fma(step, static_cast<float>(i), first)
                              : std::fma(-step, static_cast<float>(count - 1 - i), last)};
}

// The largest magnitude of an operation whose smallest is 0.
double highest_of(AutoAugment policy, Operation operation, std::int64_t rows, std::int64_t columns) {
  const bool wide = policy == AutoAugment::ta_wide, mix = policy == AutoAugment::augmix;
  const auto moved = [&](std::int64_t size) {
    const auto pixels = static_cast<double>(size);
    return wide ? 32.0 : mix ? pixels / 3.0 : 150.0 / 331.0 * pixels;
  };
  switch (operation) {
    case Operation::shear_x:
    case Operation::shear_y: return wide ? 0.99 : 0.3;
    case Operation::translate_x: return moved(columns);
    case Operation::translate_y: return moved(rows);
    case Operation::rotate: return wide ? 135.0 : 30.0;
    case Operation::brightness:
    case Operation::color:
    case Operation::contrast:
    case Operation::sharpness: return wide ? 0.99 : 0.9;
    default: return 0;
  }
}

bool is_signed(Operation operation) { return operation >= Operation::shear_x && operation <= Operation::sharpness; }

}  // namespace

double magnitude_of(AutoAugment policy, Operation operation, int bin, std::int64_t rows, std::int64_t columns) {
  const int bins = policy == AutoAugment::augmix ? kAugMixBins : kBins;
  if (operation == Operation::solarize) return evenly(1.0, 0.0, bins, bin);
  if (operation == Operation::posterize) {  // bits
    const float most = policy == AutoAugment::augmix ? 4 : 8, lost = policy == AutoAugment::ta_wide ? 6 : 4;
    return std::nearbyint(most - static_cast<float>(bin) / (static_cast<float>(bins - 1) / lost));
  }
  return is_signed(operation) ? evenly(0.0, highest_of(policy, operation, rows, columns), bins, bin) : 0;
}

void apply(Planes image, Operation operation, double magnitude, Interpolation interpolation, std::uint8_t* spare) {
  const Planes before{spare, image.channels, image.rows, image.columns};
  const auto transformed = [&](const Affine& transform) {
    std::copy_n(image.bytes, image.size(), spare);
    affine(before, transform, interpolation, image.bytes);
  };
  const double slope = std::atan(magnitude) * (180.0 / std::numbers::pi);
  switch (operation) {
    case Operation::identity: return;
    case Operation::shear_x: return transformed({.shear_x = slope, .about_corner = true});
    case Operation::shear_y: return transformed({.shear_y = slope, .about_corner = true});
    case Operation::translate_x: return transformed({.right = std::trunc(magnitude)});
    case Operation::translate_y: return transformed({.down = std::trunc(magnitude)});
    case Operation::rotate: return transformed({.angle = -magnitude});
    case Operation::brightness: return adjust_brightness(image, 1.0 + magnitude);
    case Operation::color: return adjust_saturation(image, 1.0 + magnitude);
    case Operation::contrast: return adjust_contrast(image, 1.0 + magnitude);
    case Operation::sharpness:
      std::copy_n(image.bytes, image.size(), spare);
      return adjust_sharpness(before, 1.0 + magnitude, image.bytes);
    case Operation::posterize: return posterize(image, static_cast<int>(magnitude));
    case Operation::solarize: return solarize(image, 255.0 * magnitude);
    case Operation::autocontrast: return autocontrast(image);
    case Operation::equalize: return equalize(image);
  }
}

Drawn draw_operation(const Augmentation& augmentation, std::int64_t rows, std::int64_t columns, Random& random) {
  const AutoAugment policy = policy_of(augmentation);
  const bool mix = policy == AutoAugment::augmix;
  const auto count = static_cast<std::uint32_t>(kOperationNames.size());
  const auto operation = static_cast<Operation>(mix ? 1 + random.below(count - 1) : random.below(count));
  std::int64_t bin = augmentation.ra_magnitude.value_or(kDefaultMagnitude);
  if (policy == AutoAugment::ta_wide) bin = random.below(kBins);
  if (mix) bin = random.below(static_cast<std::uint32_t>(augmentation.augmix_severity.value_or(kDefaultSeverity)));
  const double magnitude = magnitude_of(policy, operation, static_cast<int>(bin), rows, columns);
  return {operation, is_signed(operation) && random.below(2) == 1 ? -magnitude : magnitude};
}

void begin_mix(Planes image, float weight, float* mix) {
  for (std::int64_t i = 0; i < image.size(); ++i) mix[i] = weight * static_cast<float>(image.bytes[i]);
}

void add_to_mix(Planes image, float weight, float* mix) {
  for (std::int64_t i = 0; i < image.size(); ++i) mix[i] += weight * static_cast<float>(image.bytes[i]);
}

void end_mix(const float* mix, Planes image) {
  for (std::int64_t i = 0; i < image.size(); ++i) image.bytes[i] = static_cast<std::uint8_t>(mix[i]);
}

namespace {

// Of the exponential distribution.
float waiting_time(Random& random) { return -std::log1p(-random.uniform()); }

// Weights drawn as torchvision's with alpha = 1: of the image and of all chains together, a Beta(1, 1); of each chain
// within these, a Dirichlet(1, 1, 1).
void mix(Planes image, const Augmentation& augmentation, Interpolation interpolation, Random& random, float* sum,
         std::uint8_t* chain, std::uint8_t* spare) {
  const float kept = random.uniform();
  std::array<float, kAugMixChains> weights;
  for (float& weight : weights) weight = waiting_time(random);
  const float total = weights[0] + weights[1] + weights[2];
  begin_mix(image, kept, sum);
  for (const float weight : weights) {
    const Planes varied{chain, image.channels, image.rows, image.columns};
    std::copy_n(image.bytes, image.size(), chain);
    for (std::uint32_t left = 1 + random.below(3); left > 0; --left) {
      const Drawn drawn = draw_operation(augmentation, image.rows, image.columns, random);
      apply(varied, drawn.operation, drawn.magnitude, interpolation, spare);
    }
    add_to_mix(varied, total > 0 ? weight / total * (1.0f - kept) : 0.0f, sum);
  }
  end_mix(sum, image);
}

// In random order, each by a factor of its own.
void jitter(Planes image, const ColorJitter& by, Random& random) {
  std::array<int, 4> order{0, 1, 2, 3};
  for (std::uint32_t left = 4; left > 1; --left) std::swap(order[left - 1], order[random.below(left)]);
  const auto factor = [&](float range) { return double{random.uniform(std::max(0.0f, 1.0f - range), 1.0f + range)}; };
  const double brightness = factor(by.brightness), contrast = factor(by.contrast), saturation = factor(by.saturation);
  const double turns = double{random.uniform(-by.hue, by.hue)};
  for (const int step : order) {
    if (step == 0 && by.brightness > 0) adjust_brightness(image, brightness);
    if (step == 1 && by.contrast > 0) adjust_contrast(image, contrast);
    if (step == 2 && by.saturation > 0) adjust_saturation(image, saturation);
    if (step == 3 && by.hue > 0) adjust_hue(image, turns);
  }
}

}  // namespace

std::size_t spare_bytes(const Augmentation& augmentation, std::int64_t image_bytes) {
  if (!changes_bytes(augmentation)) return 0;
  const auto bytes = static_cast<std::size_t>(image_bytes);
  return policy_of(augmentation) == AutoAugment::augmix ? bytes * (2 + sizeof(float)) : bytes;
}

std::size_t scratch_bytes(const Augmentation& augmentation, std::int64_t image_bytes) {
  return spare_bytes(augmentation, image_bytes) +
         static_cast<std::size_t>(image_bytes) * (changes_bytes(augmentation) ? 2 : 1);
}

void vary(Planes image, const Augmentation& augmentation, Random& random, std::span<std::uint8_t> spare) {
  const Interpolation interpolation = augmentation.interpolation.value_or(Interpolation::bilinear);
  const float degrees = augmentation.rotation.value_or(0);
  if (degrees > 0)
    apply(image, Operation::rotate, double{random.uniform(-degrees, degrees)}, interpolation, spare.data());
  const AutoAugment policy = policy_of(augmentation);
  if (policy == AutoAugment::augmix) {
    std::uint8_t* const bytes = spare.data() + static_cast<std::size_t>(image.size()) * sizeof(float);
    mix(image, augmentation, interpolation, random, reinterpret_cast<float*>(spare.data()), bytes,
        bytes + image.size());
  } else if (policy != AutoAugment::none) {
    const std::int64_t count = policy == AutoAugment::ra ? augmentation.ra_ops.value_or(kDefaultOps) : 1;
    for (std::int64_t i = 0; i < count; ++i) {
      const Drawn drawn = draw_operation(augmentation, image.rows, image.columns, random);
      apply(image, drawn.operation, drawn.magnitude, interpolation, spare.data());
    }
  }
  const ColorJitter colours = augmentation.color_jitter.value_or(ColorJitter{});
  if (colours != ColorJitter{}) jitter(image, colours, random);
  if (augmentation.own)
    augmentation.own->function({image.bytes, static_cast<std::size_t>(image.size())},
                               Shape{image.channels, image.rows, image.columns}, random);
}

namespace augmentations {
namespace {

std::vector<OwnAugmentation>& entries() {
  static std::vector<OwnAugmentation> all;
  return all;
}

}  // namespace

const std::vector<OwnAugmentation>& registry() { return entries(); }
const OwnAugmentation& find(std::string_view name) {
  if (entries().empty())
    throw Error(ErrorCode::usage,
                "augmentation '" + std::string(name) + "' does not exist: this program has added none");
  return find_entry(entries(), name, "augmentation");
}
void add(OwnAugmentation augmentation) {
  if (!augmentation.function)
    throw Error(ErrorCode::usage, "augmentation '" + augmentation.name + "' cannot be added; it has no function");
  add_entry(entries(), std::move(augmentation), "augmentation");
}

}  // namespace augmentations

}  // namespace dp
