// Image sets on one device: what is allocated, what is rejected, and which bytes a batch has.
#include "engine/step/device_images.h"

#include <cmath>
#include <limits>

#include "support/catch.h"
#include "support/training.h"

using namespace dp;
using namespace dp::engine;
using namespace dp::test;

namespace {

struct BatchMaker {
  explicit BatchMaker(bool discrete, DeviceKind kind = DeviceKind::cpu) {
    kernels::ContextOptions options;
    options.discrete_memory = discrete;
    context = kernels::backend(kind).open({kind, 0}, options);
    stream = context->make_stream();
    sets.emplace(*context, *stream);
  }
  std::vector<float> make_batch(const DeviceImages& images, const std::vector<std::int64_t>& samples) {
    const auto rows = static_cast<std::int64_t>(samples.size());
    std::vector<float> x(static_cast<std::size_t>(images.set->images.shape().with_dim(0, rows).numel()));
    sets->choose(images);
    sets->make_batch(samples.data(), rows, x.data());
    stream->synchronize();
    return x;
  }

  std::unique_ptr<kernels::Context> context;
  std::unique_ptr<kernels::Stream> stream;
  std::optional<DeviceImageSets> sets;
};

ImageSet random_set(const Shape& shape, std::uint64_t seed) {
  ImageSet set{Tensor(shape, DType::u8), {{}, {}}, {}};
  Random random(seed, RandomUse::synthetic);
  for (std::uint8_t& byte : set.images.span<std::uint8_t>()) byte = static_cast<std::uint8_t>(random.below(256));
  for (std::int64_t channel = 0; channel < shape[1]; ++channel) {
    set.normalization.mean.push_back(0.25f * static_cast<float>(channel));
    set.normalization.std.push_back(0.5f + static_cast<float>(channel));
  }
  return set;
}

DeviceImages images_of(const ImageSet& set) { return {std::make_shared<ImageSet>(set)}; }

// Applies `change` to a valid set and uploads it. Returns the error's text.
template <typename Change>
std::string refusal(Change&& change) {
  ImageSet set = random_set({3, 2, 4, 4}, 1);
  change(set);
  try {
    BatchMaker(false).sets->upload(images_of(set), 1);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::usage);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("image sets: pixels are normalised by the statistics of their channel, with two sets in turn") {
  for (const bool discrete : {false, true}) {
    BatchMaker maker(discrete);
    const DeviceImages first = images_of(random_set({4, 2, 3, 3}, 1)), second = images_of(random_set({5, 2, 3, 3}, 2));
    maker.sets->upload(first, 2);
    maker.sets->upload(second, 2);
    for (const DeviceImages* images : {&first, &second, &first}) {
      const std::vector<std::int64_t> samples{3, 1};
      const std::vector<float> x = maker.make_batch(*images, samples);
      const std::uint8_t* const bytes = images->set->images.data<std::uint8_t>();
      for (std::size_t i = 0; i < x.size(); ++i) {
        const std::size_t row = i / 18, channel = i % 18 / 9;
        const float byte = bytes[static_cast<std::size_t>(samples[row]) * 18 + i % 18];
        const float mean = 0.25f * static_cast<float>(channel), deviation = 0.5f + static_cast<float>(channel);
        CHECK(x[i] == Approx((byte / 255 - mean) / deviation).epsilon(1e-6).margin(1e-6));
      }
    }
  }
}

TEST_CASE("image sets: a set that is copied in several pieces arrives whole") {
  const DeviceImages images = images_of(random_set({5, 1, 1024, 1024}, 3));  // 5 MiB, in pieces of 4 MiB
  std::vector<std::vector<float>> found;
  for (const bool discrete : {false, true}) {
    BatchMaker maker(discrete);
    maker.sets->upload(images, 1);
    for (const std::int64_t sample : {0, 3, 4}) found.push_back(maker.make_batch(images, {sample}));
  }
  for (std::size_t i = 0; i < 3; ++i) CHECK((found[i] == found[i + 3]));
  CHECK((found[1] != found[2]));
}

TEST_CASE("image sets: upload() allocates each set once, and its bytes only where the host's cannot be read") {
  constexpr std::size_t kInputs = sizeof(kernels::GatherInputs), kStatistics = 2 * 2 * sizeof(float);
  for (const bool discrete : {false, true}) {
    BatchMaker maker(discrete);
    const DeviceImages first = images_of(random_set({4, 2, 3, 3}, 1)), second = images_of(random_set({5, 2, 3, 3}, 2));
    CHECK(maker.sets->upload(first, 2) == kInputs + kStatistics + (discrete ? 72 : 0));
    CHECK(maker.sets->upload(first, 2) == 0);
    CHECK(maker.sets->upload(first, 3) == 0);
    CHECK(maker.sets->upload(second, 3) == kStatistics + (discrete ? 90 : 0));
    // Ops of both numbers of rows exist.
    const std::vector<float> two = maker.make_batch(first, {1, 2}), three = maker.make_batch(first, {1, 2, 0});
    CHECK(std::equal(two.begin(), two.end(), three.begin()));
  }
}

TEST_CASE("image sets: the selection follows augmentation, seed and epoch") {
  ImageSet set = random_set({2, 1, 16, 16}, 4);
  set.augmentation = {.padding = 4, .flip = Flip::random};
  DeviceImages images = images_of(set);
  BatchMaker maker(false);
  maker.sets->upload(images, 2);
  const auto batch_of = [&](bool augment, std::uint64_t seed, std::uint64_t epoch) {
    images.augment = augment, images.seed = seed, images.epoch = epoch;
    return maker.make_batch(images, {0, 1});
  };
  const auto plain = batch_of(false, 1, 1), base = batch_of(true, 1, 1), seed = batch_of(true, 2, 1),
             epoch = batch_of(true, 1, 2);
  CHECK((base != plain));
  CHECK((seed != base));
  CHECK((epoch != base));
  CHECK((epoch != seed));
  CHECK((batch_of(true, 1, 1) == base));
  CHECK((batch_of(false, 2, 2) == plain));
}

TEST_CASE("image sets: sets that cannot be normalised, padded or computed are rejected with the reason") {
  const std::string bytes =
      "device-resident images are bytes, with a mean and a deviation for each channel: use read_images()";
  const std::string range = "device-resident images are padded by 0 or more pixels and divided by deviations above 0";
  CHECK(refusal([](ImageSet&) {}).empty());
  CHECK(refusal([](ImageSet& set) { set.images = Tensor(set.images.shape()); }) == bytes);
  CHECK(refusal([](ImageSet& set) { set.normalization.mean.pop_back(); }) == bytes);
  CHECK(refusal([](ImageSet& set) { set.normalization.std.push_back(1); }) == bytes);
  CHECK(refusal([](ImageSet& set) { set.augmentation.padding = -1; }) == range);
  static constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  CHECK(refusal([](ImageSet& set) { set.augmentation.padding = kMost; }).empty());
  CHECK(refusal([](ImageSet& set) { set.augmentation.padding = kMost + 1; }) == range);
  for (const float deviation : {0.0f, -1.0f, std::nanf("")})
    CHECK(refusal([&](ImageSet& set) { set.normalization.std[1] = deviation; }) == range);
  CHECK_THROWS_WITH(BatchMaker(false, DeviceKind::reference).sets->upload(images_of(random_set({1, 2, 4, 4}, 1)), 1),
                    Catch::Contains(" does not support device-resident images; give it batches of images"));
}
