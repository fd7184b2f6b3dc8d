// Images that cannot be read: replaced by the next of their class, or found beforehand.
#include <cmath>

#include "data/small_dataset.h"
#include "dp/error.h"
#include "support/catch.h"
#include "support/spoiled_dataset.h"

namespace {

using namespace dp;
using dp::test::SmallDataset;
using dp::test::SpoiledDataset;

TEST_CASE("a bad image is replaced by the next of its class, the last one by the first") {
  const auto whole = std::make_shared<SmallDataset>(25);  // sample i has class i % 10
  for (const auto& [bad, instead] : {std::pair(3, 13), {13, 23}, {23, 3}, {9, 19}, {19, 9}}) {
    const auto replaced = replace_bad_images(std::make_shared<SpoiledDataset>(whole, bad));
    CHECK(replaced->replaced()->empty());
    for (int read = 0; read < 2; ++read) CHECK(replaced->image(bad) == whole->image(instead));
    CHECK(replaced->label(bad) == whole->label(instead));
    CHECK(*replaced->replaced() == std::vector<std::string>{SpoiledDataset::kFault});
    for (int other = 0; other < 25; ++other)
      if (other != bad) CHECK(replaced->image(other) == whole->image(other));
  }
}

TEST_CASE("a bad image without another of its class is an error, and so is what no image file causes") {
  const auto small = std::make_shared<SmallDataset>(5);
  const auto alone = replace_bad_images(std::make_shared<SpoiledDataset>(small, 4));
  CHECK_THROWS_AS(alone->image(4), Error);
  small->throwing = {2};  // not Error(data)
  CHECK_THROWS_AS(replace_bad_images(small)->image(2), std::runtime_error);
}

struct Described final : SmallDataset {
  using SmallDataset::SmallDataset;
  std::vector<std::string> class_names() const override { return {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"}; }
  std::string sample_id(std::int64_t index) const override { return "id " + std::to_string(index); }
  std::vector<std::pair<std::string, std::int64_t>> passed_over() const override { return {{".gif", 2}}; }
  std::optional<std::vector<std::string>> replaced() const override { return std::vector<std::string>{"a fault"}; }
};

TEST_CASE("a data set with other labels or replaced images keeps what describes the rest") {
  const auto whole = std::make_shared<Described>(20);
  const auto relabelled = with_classes({whole, whole}, whole->class_names()).train;
  CHECK(relabelled->replaced() == whole->replaced());
  for (const auto& same : {relabelled, replace_bad_images(whole)}) {
    CHECK(same->sample_id(7) == "id 7");
    CHECK(same->class_names() == whole->class_names());
    CHECK(same->passed_over() == whole->passed_over());
    CHECK(same->varies() == whole->varies());
  }
}

TEST_CASE("bad images are found in the order of the data set, with any number of threads") {
  const auto small = std::make_shared<SmallDataset>(100);
  const auto twice = std::make_shared<SpoiledDataset>(std::make_shared<SpoiledDataset>(small, 70), 7);
  for (const int threads : {0, 1, 3, 200}) {
    std::vector<std::int64_t> progress;
    const auto check = check_images(*twice, threads, [&](std::int64_t done) { progress.push_back(done); });
    CHECK(check.faults == std::vector<std::string>(2, SpoiledDataset::kFault));
    CHECK(progress.back() == 100);
    CHECK(std::is_sorted(progress.begin(), progress.end()));
  }
  small->bad_label = 5;
  CHECK(check_images(*small).faults.size() == 1);
}

TEST_CASE("the mean and deviation of each channel are those of all images that can be read, on any number of threads") {
  const auto small = std::make_shared<SmallDataset>(100, Shape{3, 4, 5});
  std::vector<double> sums(3), squares(3);
  for (std::int64_t i = 0; i < 100; ++i) {
    if (i == 7) continue;
    const std::vector<std::uint8_t> image = small->image(i);
    for (std::size_t k = 0; k < image.size(); ++k) {
      const double x = image[k] / 255.0;
      sums[k / 20] += x, squares[k / 20] += x * x;
    }
  }
  const SpoiledDataset spoiled(small, 7);
  for (const int threads : {1, 3, 200}) {
    const Normalization found = check_images(spoiled, threads).measured;
    REQUIRE(found.mean.size() == 3);
    REQUIRE(found.std.size() == 3);
    for (std::size_t channel = 0; channel < 3; ++channel) {
      const double mean = sums[channel] / (99 * 20), square = squares[channel] / (99 * 20);
      CHECK(found.mean[channel] == Approx(mean).epsilon(1e-6));
      CHECK(found.std[channel] == Approx(std::sqrt(square - mean * mean)).epsilon(1e-6));
    }
  }
  CHECK(check_images(SmallDataset(0)).measured.std == std::vector<float>(1));
}

}  // namespace
