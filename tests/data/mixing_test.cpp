// Mixed images, weights of classes, and the targets that a loader makes of them.
#include <cmath>
#include <memory>
#include <vector>

#include "data/augment/mixing.h"
#include "data/refusal.h"
#include "data/small_dataset.h"
#include "dp/error.h"
#include "support/catch.h"

using namespace dp;
using dp::test::SmallDataset;

namespace {

constexpr std::int64_t kSide = 6;
const Shape kImage{2, kSide, kSide};

struct Mixed {
  std::vector<float> images, targets;
  std::vector<std::int32_t> labels;
  std::vector<std::int64_t> samples;
  friend bool operator==(const Mixed&, const Mixed&) = default;
};

std::vector<Mixed> batches(const std::shared_ptr<const Dataset>& dataset, const LoaderOptions& options,
                           std::int64_t epoch = 0, std::int64_t first = 0) {
  Loader loader(dataset, options);
  loader.start(epoch, first);
  std::vector<Mixed> all;
  const auto copy = [](const auto& span) { return std::vector(span.begin(), span.end()); };
  while (const Batch* batch = loader.next()) {
    Mixed one{copy(batch->images.span<float>()),
              {},
              copy(batch->labels.span<std::int32_t>()),
              copy(batch->samples.span<std::int64_t>())};
    if (!batch->targets.empty()) one.targets = copy(batch->targets.span<float>());
    all.push_back(one);
  }
  return all;
}

}  // namespace

TEST_CASE("the part of an image that stays follows a Beta distribution") {
  for (const double alpha : {0.001, 0.2, 1.0, 3.0}) {
    Random random(5, RandomUse::mix);
    constexpr int kDraws = 20000;
    double sum = 0, squares = 0, fourth = 0;
    for (int i = 0; i < kDraws; ++i) {
      const double away = draw_beta(alpha, random) - 0.5;
      sum += away, squares += away * away, fourth += away * away * away * away;
    }
    INFO("alpha " << alpha);
    const double variance = 1 / (4 * (2 * alpha + 1));
    CHECK(std::abs(sum / kDraws) < 5 * std::sqrt(variance / kDraws));
    CHECK(squares / kDraws == Approx(variance).epsilon(0.05));
    CHECK(fourth / kDraws == Approx(3 * variance * variance * (2 * alpha + 1) / (2 * alpha + 3)).epsilon(0.1));
  }
}

TEST_CASE("the box of CutMix is torchvision's, and the part that stays is what is left beside it") {
  // half = 0.5 * sqrt(1 - 0.75) = 0.25: two of 8 rows and three of 12 columns on each side.
  const Mix inside = cut_box(0.75, 4, 6, 8, 12);
  CHECK(inside.pasted == Region{3, 2, 6, 4});
  CHECK(inside.own == 0.75);
  const Mix corner = cut_box(0.75, 0, 11, 8, 12);
  CHECK(corner.pasted == Region{8, 0, 4, 2});
  CHECK(corner.own == Approx(1 - 8.0 / 96).epsilon(1e-15));
  CHECK(cut_box(0, 4, 6, 8, 12).own == 0);
  CHECK(cut_box(1, 4, 6, 8, 12).own == 1);
  CHECK(cut_box(0.99, 4, 6, 8, 12).own == 1);  // less than a pixel
}

TEST_CASE("mixup blends image i of a batch with image B-1-i, and its targets alike") {
  const auto dataset = std::make_shared<SmallDataset>(23, kImage);
  const LoaderOptions plain{.batch_size = 10, .seed = 7};
  LoaderOptions mixing = plain;
  mixing.targets = {.mixup_alpha = 1, .label_smoothing = 0.1f};
  const auto images = batches(dataset, plain, 2), mixed = batches(dataset, mixing, 2);
  const auto classes = static_cast<std::size_t>(dataset->classes()), size = static_cast<std::size_t>(kImage.numel());
  REQUIRE(mixed.size() == 3);
  std::vector<double> shares;
  for (std::size_t b = 0; b < mixed.size(); ++b) {
    const std::size_t rows = images[b].labels.size();
    REQUIRE(mixed[b].labels == images[b].labels);
    REQUIRE(mixed[b].targets.size() == rows * classes);
    Random random(7, RandomUse::mix, 2, b);
    const double own = draw_beta(1, random);
    shares.push_back(own);
    for (std::size_t i = 0; i < rows; ++i) {
      const std::size_t other = rows - 1 - i;
      for (std::size_t k = 0; k < size; ++k) {
        const double wanted = own * static_cast<double>(images[b].images[i * size + k]) +
                              (1 - own) * static_cast<double>(images[b].images[other * size + k]);
        REQUIRE(static_cast<double>(mixed[b].images[i * size + k]) == Approx(wanted).epsilon(1e-6).margin(1e-6));
      }
      for (std::size_t k = 0; k < classes; ++k) {
        const auto is = [&](std::size_t row) {
          return images[b].labels[row] == static_cast<std::int32_t>(k) ? 1.0 : 0.0;
        };
        const double wanted = 0.9 * (own * is(i) + (1 - own) * is(other)) + 0.1 / static_cast<double>(classes);
        CHECK(static_cast<double>(mixed[b].targets[i * classes + k]) == Approx(wanted).epsilon(1e-6).margin(1e-6));
      }
    }
  }
  CHECK((shares[0] != shares[1] && shares[1] != shares[2]));
}

TEST_CASE("CutMix exchanges a box between two images, and each pixel comes from one of them") {
  const auto dataset = std::make_shared<SmallDataset>(40, kImage);
  const LoaderOptions plain{.batch_size = 4};
  LoaderOptions mixing = plain;
  mixing.targets.cutmix_alpha = 1;
  const auto images = batches(dataset, plain), mixed = batches(dataset, mixing);
  const auto size = static_cast<std::size_t>(kImage.numel());
  std::size_t pasted = 0;
  for (std::size_t b = 0; b < mixed.size(); ++b) {
    Random random(42, RandomUse::mix, 0, b);
    const Mix mix = draw_mix(mixing.targets, kImage, random);
    CHECK(mix.own == Approx(1 - static_cast<double>(mix.pasted.width * mix.pasted.height) / (kSide * kSide)));
    for (std::size_t i = 0; i < 4; ++i)
      for (std::size_t k = 0; k < size; ++k) {
        const auto row = static_cast<std::int64_t>(k % 36 / 6) - mix.pasted.top;
        const auto column = static_cast<std::int64_t>(k % 6) - mix.pasted.left;
        const bool other = row >= 0 && row < mix.pasted.height && column >= 0 && column < mix.pasted.width;
        REQUIRE(mixed[b].images[i * size + k] == images[b].images[(other ? 3 - i : i) * size + k]);
        pasted += other;
      }
  }
  CHECK(pasted > 0);
}

TEST_CASE("with both, about half of the batches are cut and the others blended") {
  int cut = 0;
  for (std::uint64_t batch = 0; batch < 200; ++batch) {
    Random random(42, RandomUse::mix, 0, batch);
    cut += draw_mix({.mixup_alpha = 0.2, .cutmix_alpha = 1}, kImage, random).pastes;
  }
  CHECK(std::abs(cut - 100) < 40);
}

TEST_CASE("mixed batches depend on seed, epoch and batch, not on threads or where the epoch begins") {
  const auto dataset = std::make_shared<SmallDataset>(30, kImage);
  LoaderOptions options{.batch_size = 8};
  options.targets = {.mixup_alpha = 0.4, .cutmix_alpha = 1};
  const auto one = batches(dataset, options, 1);
  LoaderOptions threads = options, seed = options;
  threads.workers = 3;
  seed.seed = 43;
  CHECK(batches(dataset, threads, 1) == one);
  CHECK(batches(dataset, options, 1, 2) == std::vector(one.begin() + 2, one.end()));
  CHECK(batches(dataset, options, 2) != one);
  CHECK(batches(dataset, seed, 1) != one);
}

TEST_CASE("weights of classes are factors of the targets, divided by their mean over the global batch") {
  const auto dataset = std::make_shared<SmallDataset>(21, kImage);
  const auto classes = static_cast<std::size_t>(dataset->classes());
  std::vector<float> weights;
  for (std::size_t k = 0; k < classes; ++k) weights.push_back(static_cast<float>(k) / 2);
  for (const int ranks : {1, 2}) {
    std::vector<double> sums;  // of the targets of each batch
    std::size_t samples = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      LoaderOptions options{.batch_size = 8, .rank = rank, .ranks = ranks, .pad = true};
      options.targets.class_weights = weights;
      const auto mixed = batches(dataset, options);
      sums.resize(mixed.size());
      for (std::size_t b = 0; b < mixed.size(); ++b)
        for (std::size_t i = 0; i < mixed[b].labels.size(); ++i, ++samples)
          for (std::size_t k = 0; k < classes; ++k) {
            const auto target = static_cast<double>(mixed[b].targets[i * classes + k]);
            sums[b] += target;
            if (k != static_cast<std::size_t>(mixed[b].labels[i])) CHECK(target == 0);
          }
    }
    CHECK(samples == (ranks == 1 ? 21 : 22));
    REQUIRE(sums.size() == 3);
    CHECK(sums[0] == Approx(8).epsilon(1e-6));
    CHECK(sums[1] == Approx(8).epsilon(1e-6));
    CHECK(sums[2] == Approx(ranks == 1 ? 5 : 6).epsilon(1e-6));
  }
}

TEST_CASE("the weights of samples are in the last column of the targets, mixed as the images are") {
  class Weighted final : public SmallDataset {
   public:
    using SmallDataset::SmallDataset;
    bool has_weights() const override { return true; }
    float weight(std::int64_t index) const override { return static_cast<float>(index); }
  };
  const auto dataset = std::make_shared<Weighted>(9, kImage);
  for (const double alpha : {0.0, 1.0}) {
    LoaderOptions options{.batch_size = 9};
    options.targets = {.mixup_alpha = alpha, .sample_weights = true};
    const Mixed mixed = batches(dataset, options).front();
    const auto classes = static_cast<std::size_t>(dataset->classes()), columns = classes + 1;
    REQUIRE(mixed.targets.size() == 9 * columns);
    const auto own = [&](std::size_t i) {  // the part of image i that stays; 1 too if both have the same class
      return static_cast<double>(mixed.targets[i * columns + static_cast<std::size_t>(mixed.labels[i])]);
    };
    for (std::size_t i = 0; i < 9; ++i) {
      const double wanted =
          own(i) * static_cast<double>(mixed.samples[i]) + (1 - own(i)) * static_cast<double>(mixed.samples[8 - i]);
      if (alpha == 0 || mixed.labels[i] != mixed.labels[8 - i])
        CHECK(static_cast<double>(mixed.targets[i * columns + classes]) == Approx(wanted).epsilon(1e-5));
    }
  }
}

TEST_CASE("targets for more outputs than the data set has classes are zero there") {
  const auto dataset = std::make_shared<SmallDataset>(9, kImage);
  LoaderOptions options{.batch_size = 9};
  options.targets = {.mixup_alpha = 1, .classes = dataset->classes() + 3};
  const auto mixed = batches(dataset, options);
  const auto columns = static_cast<std::size_t>(options.targets.classes);
  REQUIRE(mixed.front().targets.size() == 9 * columns);
  for (std::size_t i = 0; i < 9; ++i)
    for (std::size_t k = columns - 3; k < columns; ++k) CHECK(mixed.front().targets[i * columns + k] == 0);
}

TEST_CASE("wrong options of targets are refused") {
  const auto dataset = std::make_shared<SmallDataset>(9, kImage);
  const auto refuse = [&](const TargetOptions& targets, const std::string& text) {
    LoaderOptions options{.batch_size = 9};
    options.targets = targets;
    CHECK_THROWS_WITH(Loader(dataset, options), Catch::Contains(text));
  };
  refuse({.mixup_alpha = 5}, "the alpha of mixup or cutmix is 5.000000; give 0, or 0.001 to 4");
  refuse({.mixup_alpha = 1, .cutmix_alpha = -1}, "the alpha of mixup or cutmix is -1.000000; give 0, or 0.001 to 4");
  refuse({.mixup_alpha = 1e-9}, "give 0, or 0.001 to 4");  // would draw without end
  refuse({.class_weights = {1, 2}}, "2 weights of classes do not fit the");
  refuse({.class_weights = std::vector<float>(static_cast<std::size_t>(dataset->classes()), -1)},
         "the weights of classes must be at least 0");
  refuse({.mixup_alpha = 1, .label_smoothing = 1}, "label_smoothing must be in [0, 1)");
  auto set = std::make_shared<ImageSet>();
  set->images = Tensor(kImage.prepended(9), DType::u8);
  LoaderOptions resident{.batch_size = 9, .resident = set};
  resident.targets.mixup_alpha = 1;
  CHECK_THROWS_WITH(Loader(dataset, resident), Catch::Contains("device-resident images cannot be mixed"));
}
