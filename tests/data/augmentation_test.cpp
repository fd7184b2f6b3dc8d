// What the loader draws for each image: flips, policies, erased rectangles; and what it refuses.
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <set>

#include "data/augment/policies.h"
#include "data/small_dataset.h"
#include "dp/error.h"
#include "support/catch.h"

namespace {

using dp::Augmentation;
using dp::AutoAugment;
using dp::Flip;
using dp::Loader;
using dp::LoaderOptions;
using dp::Planes;
using dp::Random;
using dp::RandomUse;
using dp::test::SmallDataset;

constexpr std::int64_t kSamples = 40, kHeight = 12, kWidth = 14;
using Images = std::map<std::int64_t, std::vector<float>>;

std::shared_ptr<SmallDataset> colours() {
  auto dataset = std::make_shared<SmallDataset>(kSamples, dp::Shape{3, kHeight, kWidth});
  dataset->augmentation_ = {};
  return dataset;
}

Images read(const Augmentation& augmentation, std::int64_t epoch, LoaderOptions options = {.batch_size = 7},
            std::shared_ptr<const dp::Dataset> dataset = colours()) {
  options.augment = true;
  Loader loader(dp::with_augmentation(std::move(dataset), augmentation), options);
  Images images;
  for (const auto& batch : dp::test::whole(loader, epoch)) {
    const std::size_t size = batch.images.size() / batch.samples.size();
    for (std::size_t row = 0; row < batch.samples.size(); ++row)
      images[batch.samples[row]].assign(batch.images.begin() + static_cast<long>(row * size),
                                        batch.images.begin() + static_cast<long>((row + 1) * size));
  }
  return images;
}

std::vector<float> flipped(const std::vector<float>& image, bool upside_down) {
  std::vector<float> out;
  for (std::size_t i = 0; i < image.size(); ++i) {
    const std::size_t c = i / (kHeight * kWidth), y = i / kWidth % kHeight, x = i % kWidth;
    out.push_back(
        image[(c * kHeight + (upside_down ? kHeight - 1 - y : y)) * kWidth + (upside_down ? x : kWidth - 1 - x)]);
  }
  return out;
}

// The text of the usage error, or empty.
template <typename Call>
std::string usage_refusal(const Call& call) {
  try {
    call();
  } catch (const dp::Error& error) {
    CHECK(error.code() == dp::ErrorCode::usage);
    return error.what();
  }
  return "";
}

// Inverts a random plane of about half of the images.
dp::OwnAugmentation invert_some() {
  return {"invert_some", "", [](std::span<std::uint8_t> image, const dp::Shape& shape, Random& random) {
            if (shape != dp::Shape{3, kHeight, kWidth} || image.size() != 3 * kHeight * kWidth)
              throw dp::Error(dp::ErrorCode::usage, "not the shape of the images");
            const auto pixels = static_cast<std::size_t>(kHeight * kWidth);
            if (random.below(2) == 1)
              for (std::uint8_t& byte : image.subspan(random.below(3) * pixels, pixels))
                byte = static_cast<std::uint8_t>(255 - byte);
          }};
}

// Every step at once.
const Augmentation kEverything{.padding = 2,
                               .flip = Flip::alternating,
                               .vflip = true,
                               .rotation = 20.0f,
                               .auto_augment = AutoAugment::ra,
                               .color_jitter = dp::ColorJitter{0.4f, 0.3f, 0.2f, 0.1f},
                               .own = invert_some(),
                               .random_erase = 0.5f};

}  // namespace

TEST_CASE("an alternating flip flips every image in every other epoch, about half of them in the first") {
  const Images plain = read({}, 0);
  std::vector<Images> epochs;
  for (std::int64_t epoch = 0; epoch < 4; ++epoch) epochs.push_back(read({.flip = Flip::alternating}, epoch));
  int first = 0;
  for (const auto& [sample, image] : plain) {
    const std::vector<float> mirror = flipped(image, false);
    const bool begins = epochs[0].at(sample) == mirror;
    first += begins;
    for (std::size_t epoch = 0; epoch < 4; ++epoch)
      CHECK(epochs[epoch].at(sample) == (begins == (epoch % 2 == 0) ? mirror : image));
  }
  CHECK(std::abs(first - kSamples / 2) < 12);
  CHECK(read({.flip = Flip::alternating}, 0, {.batch_size = 7, .seed = 43}) != epochs[0]);
}

TEST_CASE("a vertical flip turns about half of the images upside down") {
  const Images plain = read({}, 0), varied = read({.vflip = true}, 0);
  int turned = 0;
  for (const auto& [sample, image] : plain) {
    const bool same = varied.at(sample) == image;
    CHECK((same || varied.at(sample) == flipped(image, true)));
    turned += !same;
  }
  CHECK(std::abs(turned - kSamples / 2) < 12);
}

TEST_CASE("augmented images are the same for any threads, batches, ranks and start of the epoch") {
  for (const AutoAugment policy : {AutoAugment::ra, AutoAugment::ta_wide, AutoAugment::augmix}) {
    Augmentation everything = kEverything;
    everything.auto_augment = policy;
    const Images images = read(everything, 3);
    CHECK(images == read(everything, 3, {.batch_size = 5, .shuffle = false, .workers = 3}));
    Images parts = read(everything, 3, {.batch_size = 8, .rank = 0, .ranks = 2});
    parts.merge(read(everything, 3, {.batch_size = 8, .workers = 2, .rank = 1, .ranks = 2}));
    CHECK(images == parts);
    CHECK(images != read(everything, 4));
    CHECK(images != read(everything, 3, {.seed = 43}));

    Loader loader(dp::with_augmentation(colours(), everything), {.batch_size = 7, .augment = true});
    const auto all = dp::test::whole(loader, 3);
    loader.start(3, 4);
    CHECK(dp::test::rest(loader) == std::vector(all.begin() + 4, all.end()));
  }
}

TEST_CASE("an image is cropped, flipped, rotated, changed by the policy and jittered, in this order") {
  const auto dataset = colours();
  Augmentation augmentation = kEverything;
  augmentation.random_erase = 0.0f;
  augmentation.flip = Flip::random;
  augmentation.ra_ops = 3;
  augmentation.own.reset();
  const Images images = read(augmentation, 5);
  for (const auto& [sample, image] : images) {
    Random random(42, RandomUse::augment, 5, static_cast<std::uint64_t>(sample));
    const std::vector<std::uint8_t> from = dataset->image(sample);
    std::vector<std::uint8_t> bytes, spare(from.size());
    const dp::Crop crop = dp::draw_crop(random, 2, true);
    const bool upside_down = random.below(2) == 1;
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(from.size()); ++i) {
      const std::int64_t c = i / (kHeight * kWidth), y = i / kWidth % kHeight, x = i % kWidth;
      const std::int64_t row = (upside_down ? kHeight - 1 - y : y) + crop.down;
      const std::int64_t column = (crop.flip ? kWidth - 1 - x : x) + crop.right;
      const bool inside = row >= 0 && row < kHeight && column >= 0 && column < kWidth;
      bytes.push_back(inside ? from[static_cast<std::size_t>((c * kHeight + row) * kWidth + column)] : 0);
    }
    const Planes planes{bytes.data(), 3, kHeight, kWidth};
    const double angle = double{random.uniform(-20.0f, 20.0f)};
    dp::apply(planes, dp::Operation::rotate, angle, dp::Interpolation::bilinear, spare.data());
    for (int i = 0; i < 3; ++i) {
      const dp::Drawn drawn = dp::draw_operation(augmentation, kHeight, kWidth, random);
      dp::apply(planes, drawn.operation, drawn.magnitude, dp::Interpolation::bilinear, spare.data());
    }
    dp::vary(planes, {.color_jitter = augmentation.color_jitter}, random, spare);
    std::vector<float> expected;
    for (const std::uint8_t byte : bytes) expected.push_back((static_cast<float>(byte) / 255.0f - 0.25f) / 0.5f);
    CHECK(image == expected);
  }
}

TEST_CASE("the policies draw every operation, bin and sign about equally often") {
  const auto near = [](double count, double expected) {  // five standard deviations
    return std::abs(count - expected) < 5 * std::sqrt(expected);
  };
  for (const AutoAugment policy : {AutoAugment::ra, AutoAugment::ta_wide, AutoAugment::augmix}) {
    constexpr int kDraws = 28000;
    const bool mix = policy == AutoAugment::augmix;
    Random random(7, RandomUse::augment);
    std::map<dp::Operation, int> operations;
    std::map<double, int> turns;
    int left = 0;
    for (int i = 0; i < kDraws; ++i) {
      const dp::Drawn drawn = dp::draw_operation({.auto_augment = policy}, 224, 224, random);
      ++operations[drawn.operation];
      if (drawn.operation != dp::Operation::rotate) continue;
      ++turns[std::abs(drawn.magnitude)];
      left += drawn.magnitude < 0;
    }
    CHECK(operations.size() == (mix ? 13 : 14));
    const double each = kDraws / (mix ? 13.0 : 14.0);
    for (const auto& [operation, count] : operations) CHECK(near(count, each));
    CHECK(turns.size() == (policy == AutoAugment::ra ? 1 : mix ? 3 : 31));
    for (const auto& [angle, count] : turns) CHECK(near(count, each / static_cast<double>(turns.size())));
    if (policy == AutoAugment::ra) CHECK(turns.begin()->first == 9);  // 30 degrees * 9 / 30
    CHECK(near(left, (operations[dp::Operation::rotate] - turns[0]) / 2.0));
  }
}

TEST_CASE("the weights of AugMix add up to one, and its chains have one to three operations") {
  // With severity 1 only posterize changes this image: 111 becomes 96.
  std::map<int, int> results;
  for (std::uint64_t sample = 0; sample < 600; ++sample) {
    std::vector<std::uint8_t> bytes(3 * 4 * 4, 111), spare(bytes.size() * 6);
    Random random(4, RandomUse::augment, 0, sample);
    dp::vary({bytes.data(), 3, 4, 4}, {.auto_augment = AutoAugment::augmix, .augmix_severity = 1}, random, spare);
    ++results[bytes[0]];
  }
  CHECK(results.begin()->first >= 95);  // truncated
  CHECK(results.rbegin()->first <= 111);
  CHECK(results.size() > 10);
  // No chain has posterize with probability 0.62 (with chains of one operation: 0.79). A small weight is not seen.
  CHECK(std::abs(results[110] + results[111] - 0.73 * 600) < 35);
}

TEST_CASE("colour jitter draws its factors from the whole range, and the order of its steps") {
  // Of one byte, brightness shows its factor; with contrast the order matters.
  float least = 255, most = 0;
  std::set<std::vector<std::uint8_t>> orders;
  for (std::uint64_t sample = 0; sample < 400; ++sample) {
    std::vector<std::uint8_t> bytes{100, 100, 100};
    Random random(3, RandomUse::augment, 0, sample);
    dp::vary({bytes.data(), 3, 1, 1}, {.color_jitter = dp::ColorJitter{.brightness = 0.5f}}, random, {});
    least = std::min(least, static_cast<float>(bytes[0]));
    most = std::max(most, static_cast<float>(bytes[0]));

    std::vector<std::uint8_t> wide{10, 250};
    Random again(3, RandomUse::augment, 0, sample), fixed = again;
    dp::vary({wide.data(), 1, 1, 2}, {.color_jitter = dp::ColorJitter{0.9f, 0.9f, 0, 0}}, again, {});
    for (int draw = 0; draw < 3; ++draw) fixed.next();
    const double brightness = double{fixed.uniform(0.1f, 1.9f)}, contrast = double{fixed.uniform(0.1f, 1.9f)};
    std::vector<std::uint8_t> one{10, 250}, other = one;
    dp::adjust_brightness({one.data(), 1, 1, 2}, brightness), dp::adjust_contrast({one.data(), 1, 1, 2}, contrast);
    dp::adjust_contrast({other.data(), 1, 1, 2}, contrast), dp::adjust_brightness({other.data(), 1, 1, 2}, brightness);
    CHECK((wide == one || wide == other));
    if (one != other) orders.insert(wide == one ? std::vector<std::uint8_t>{1} : std::vector<std::uint8_t>{2});
  }
  CHECK(orders.size() == 2);
  int forwards = 0, backwards = 0;
  for (std::uint64_t sample = 0; sample < 100; ++sample) {
    std::vector<std::uint8_t> red{255, 0, 0};
    Random random(5, RandomUse::augment, 0, sample);
    dp::vary({red.data(), 3, 1, 1}, {.color_jitter = dp::ColorJitter{.hue = 0.125f}}, random, {});
    forwards += red[1] > 0, backwards += red[2] > 0;
    CHECK((red[0] == 255 && red[1] < 200 && red[2] < 200));  // an eighth of a turn: 191
  }
  CHECK(std::abs(forwards - backwards) < 40);
  CHECK(forwards + backwards > 95);
  CHECK(least >= 50);
  CHECK(least < 53);
  CHECK(most <= 150);
  CHECK(most > 146);
}

TEST_CASE("a step of the program's own changes the bytes after all others, with the random numbers of the sample") {
  Augmentation without = kEverything;
  without.own.reset();
  without.random_erase.reset();
  Augmentation with = without;
  with.own = invert_some();
  const auto dataset = colours();
  const auto& normalization = dataset->normalization();
  const auto inverted = [&](std::vector<float> image, std::size_t plane) {
    for (std::size_t i = plane * kHeight * kWidth; i < (plane + 1) * kHeight * kWidth; ++i) {
      const float byte = std::round((image[i] * normalization.std[plane] + normalization.mean[plane]) * 255);
      image[i] = ((255 - byte) / 255 - normalization.mean[plane]) / normalization.std[plane];
    }
    return image;
  };
  std::array<int, 4> counts{};
  const Images plain = read(without, 2), changed = read(with, 2, {.batch_size = 5, .workers = 2});
  for (const auto& [sample, image] : plain) {
    std::size_t found = 4;
    if (changed.at(sample) == image) found = 3;
    for (std::size_t plane = 0; plane < 3; ++plane)
      if (changed.at(sample) == inverted(image, plane)) found = plane;
    REQUIRE(found < 4);
    ++counts[found];
  }
  CHECK(std::abs(counts[3] - kSamples / 2) < 12);
  for (std::size_t plane = 0; plane < 3; ++plane) CHECK(counts[plane] > 0);
  CHECK_THAT(usage_refusal([&] {
               const auto wide = std::make_shared<SmallDataset>(3, dp::Shape{3, 4, 8});
               read({.own = invert_some()}, 0, {.batch_size = 7}, wide);
             }),
             Catch::Contains("not the shape of the images"));
}

TEST_CASE("a program adds augmentations by names of their own, each with a function") {
  using namespace dp;
  CHECK(usage_refusal([] { augmentations::find("x"); }) ==
        "augmentation 'x' does not exist: this program has added none");
  augmentations::add(invert_some());
  CHECK(augmentations::registry().size() == 1);
  CHECK(augmentations::find("invert_some") == invert_some());
  CHECK(usage_refusal([] { augmentations::find("x"); }) ==
        "augmentation 'x' does not exist; choose one of invert_some");
  CHECK(usage_refusal([] { augmentations::add(invert_some()); }) == "augmentation 'invert_some' exists already");
  CHECK(usage_refusal([] {
          augmentations::add({"empty", "", {}});
        }) == "augmentation 'empty' cannot be added; it has no function");
  CHECK_THAT(usage_refusal([] {
               augmentations::add({"a b", "", invert_some().function});
             }),
             Catch::Contains("its name must consist of letters"));
}

TEST_CASE("a rectangle of 2 to 33 % of the image is erased with the probability given") {
  const Images plain = read({}, 1);
  for (const float probability : {0.25f, 1.0f}) {
    int erased = 0;
    for (const auto& [sample, image] : read({.random_erase = probability}, 1)) {
      int gone = 0;
      for (std::size_t i = 0; i < image.size(); ++i) {
        if (image[i] == plain.at(sample)[i]) continue;
        CHECK(image[i] == 0);
        ++gone;
      }
      if (gone == 0) continue;
      ++erased;
      CHECK(gone <= 3 * 0.45 * kHeight * kWidth);  // sides are rounded
    }
    CHECK(std::abs(erased - static_cast<int>(probability * kSamples)) <= (probability == 1 ? 2 : 10));
  }
  std::set<std::int64_t> tops, lefts;
  double area = 0;
  for (std::uint64_t sample = 0; sample < 500; ++sample) {
    Random random(1, RandomUse::augment, 0, sample);
    const auto rectangle = dp::random_rectangle(100, 200, random);
    REQUIRE(rectangle);
    CHECK((rectangle->top >= 0 && rectangle->top + rectangle->height <= 100));
    CHECK((rectangle->left >= 0 && rectangle->left + rectangle->width <= 200));
    const double ratio = static_cast<double>(rectangle->height) / static_cast<double>(rectangle->width);
    CHECK((ratio > 0.28 && ratio < 3.5));
    tops.insert(rectangle->top), lefts.insert(rectangle->left);
    area += static_cast<double>(rectangle->height * rectangle->width) / 100 / 200 / 500;
  }
  CHECK(area == Approx(0.17).margin(0.02));
  CHECK(tops.size() > 60);
  CHECK(lefts.size() > 100);
}

TEST_CASE("changes replace the members that they set, and nothing else") {
  const Augmentation other{1,
                           Flip::none,
                           false,
                           7.0f,
                           AutoAugment::augmix,
                           1,
                           2,
                           3,
                           dp::ColorJitter{.hue = 0.5f},
                           dp::OwnAugmentation{"other", "", {}},
                           0.5f,
                           dp::Interpolation::nearest};
  CHECK(dp::changed(kEverything, {}) == kEverything);
  CHECK(dp::changed({}, kEverything) == kEverything);
  CHECK(dp::changed(kEverything, other) == other);
  Augmentation one = kEverything;
  one.rotation = 7.0f;
  CHECK(dp::changed(kEverything, {.rotation = 7.0f}) == one);
  CHECK(read({.flip = Flip::none}, 0, {}, std::make_shared<SmallDataset>(3, dp::Shape{3, 12, 14})) !=
        read({}, 0, {}, std::make_shared<SmallDataset>(3, dp::Shape{3, 12, 14})));
}

TEST_CASE("an augmentation out of range, or for other images, is refused with its option") {
  const auto refused = [](const Augmentation& augmentation, const std::string& message,
                          const dp::Shape& shape = dp::Shape{3, 4, 4}) {
    CHECK_THAT(usage_refusal([&] { dp::with_augmentation(std::make_shared<SmallDataset>(3, shape), augmentation); }),
               Catch::Contains(message));
  };
  refused({.padding = -1}, "--crop-padding is -1; the augmentation needs a value from 0 to 4096");
  refused({.rotation = 181.0f}, "--rotation is 181; the augmentation needs a value from 0 to 180");
  refused({.rotation = NAN}, "--rotation is nan");
  refused({.ra_ops = 0}, "--ra-ops is 0; the augmentation needs a value from 1 to 16");
  refused({.ra_magnitude = 31}, "--ra-magnitude is 31");
  refused({.augmix_severity = 11}, "--augmix-severity is 11");
  refused({.random_erase = 1.5f}, "--random-erase is 1.5");
  refused({.color_jitter = dp::ColorJitter{.contrast = -0.5f}}, "--color-jitter: the factors");
  refused({.color_jitter = dp::ColorJitter{.hue = 0.75f}}, "--color-jitter: the hue is from 0 to 0.5");
  refused({.color_jitter = dp::ColorJitter{.hue = 0.25f}}, "--color-jitter requires images of 1 or 3 channels",
          dp::Shape{2, 4, 4});
  refused({.own = dp::OwnAugmentation{"empty", "", {}}}, "the augmentation 'empty' has no function");
  refused({.auto_augment = AutoAugment::ra}, "--auto-augment requires images of 1 or 3 channels", dp::Shape{2, 4, 4});
}

TEST_CASE("only a random crop and a random flip work on device-resident images") {
  const std::vector<std::pair<Augmentation, std::string>> steps{
      {{.padding = 4, .flip = Flip::random, .ra_ops = 3}, ""},
      {{.flip = Flip::alternating}, "--flip alternating"},
      {{.vflip = true}, "--vflip"},
      {{.rotation = 1.0f}, "--rotation"},
      {{.auto_augment = AutoAugment::ta_wide}, "--auto-augment"},
      {{.color_jitter = dp::ColorJitter{.hue = 0.5f}}, "--color-jitter"},
      {{.color_jitter = dp::ColorJitter{.hue = 0.5f}, .own = invert_some()}, "--own-augmentation"},
      {{.random_erase = 0.5f}, "--random-erase"}};
  for (const auto& [augmentation, option] : steps) {
    INFO(option);
    CHECK(dp::only_on_host(augmentation) == option);
    const auto dataset = dp::with_augmentation(colours(), augmentation);
    const dp::Shape shape = dataset->image_shape();
    const auto resident = std::make_shared<const dp::ImageSet>(dp::ImageSet{
        dp::Tensor(shape.prepended(kSamples), dp::DType::u8), dataset->normalization(), dataset->augmentation()});
    const auto load = [&](bool augment) {
      return usage_refusal([&] { Loader(dataset, {.batch_size = 7, .augment = augment, .resident = resident}); });
    };
    CHECK(load(false).empty());
    CHECK(load(true) ==
          (option.empty() ? "" : option + " does not work with a device-resident data set; use --images-on host"));
  }
}
