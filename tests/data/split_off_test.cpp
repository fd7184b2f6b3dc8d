// A part of the training images as the test set.
#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "data/image_files.h"
#include "data/refusal.h"
#include "data/small_dataset.h"
#include "dp/error.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

using dp::split_off;
using dp::test::SmallDataset;
using dp::test::TemporaryFolder;

namespace {

using Pixels = std::vector<std::vector<std::uint8_t>>;

Pixels pixels_of(const dp::Dataset& dataset) {
  Pixels all;
  for (std::int64_t i = 0; i < dataset.size(); ++i) all.push_back(dataset.image(i));
  return all;
}

// The positions of these images in the whole data set.
std::vector<std::int64_t> places_in(const Pixels& part, const Pixels& whole) {
  std::vector<std::int64_t> found;
  for (const auto& image : part) found.push_back(std::find(whole.begin(), whole.end(), image) - whole.begin());
  return found;
}

// Each of the first `singles` images has its own class. The others share one class.
class Uneven final : public dp::Dataset {
 public:
  Uneven(std::int64_t singles, std::int64_t others) : singles_(singles), others_(others) {}
  std::int64_t size() const override { return singles_ + others_; }
  dp::Shape image_shape() const override { return {1, 1, 1}; }
  std::int64_t classes() const override { return singles_ + 1; }
  const dp::Normalization& normalization() const override { return normalization_; }
  std::int32_t label(std::int64_t index) const override { return static_cast<std::int32_t>(std::min(index, singles_)); }
  void read(std::int64_t index, std::span<std::uint8_t> out, dp::Random*) const override {
    out[0] = static_cast<std::uint8_t>(index);
  }

 private:
  std::int64_t singles_, others_;
  dp::Normalization normalization_{{0}, {1}};
};

}  // namespace

TEST_CASE("a share of each class is split off, and both parts keep the order of the data set") {
  const auto whole = std::make_shared<SmallDataset>(200);  // 20 images of each of ten classes
  const Pixels all = pixels_of(*whole);
  const dp::DatasetPair parts = split_off(whole, 0.2);
  CHECK(parts.train->size() == 160);
  CHECK(parts.test->size() == 40);
  std::set<std::int64_t> seen;
  for (const auto& part : {parts.train, parts.test}) {
    const std::vector<std::int64_t> found = places_in(pixels_of(*part), all);
    CHECK(std::is_sorted(found.begin(), found.end()));
    seen.insert(found.begin(), found.end());
    std::map<std::int32_t, std::int64_t> of_class;
    for (std::int64_t i = 0; i < part->size(); ++i) {
      CHECK(part->label(i) == whole->label(found[static_cast<std::size_t>(i)]));
      ++of_class[part->label(i)];
    }
    CHECK(of_class.size() == 10);
    for (const auto& [label, count] : of_class) CHECK(count == part->size() / 10);
    CHECK(part->classes() == 10);
    CHECK(part->image_shape() == whole->image_shape());
  }
  CHECK(seen.size() == 200);
}

TEST_CASE("the seed alone chooses the images that are split off") {
  const auto whole = std::make_shared<SmallDataset>(200);
  CHECK(pixels_of(*split_off(whole, 0.2, 1).test) == pixels_of(*split_off(whole, 0.2, 1).test));
  CHECK(pixels_of(*split_off(whole, 0.2, 1).test) != pixels_of(*split_off(whole, 0.2, 2).test));
}

TEST_CASE("a class with several images has some in both parts") {
  for (const auto& [share, tested] : {std::pair(0.01, 1), {0.4, 2}, {0.5, 3}, {0.99, 4}}) {  // of five
    const dp::DatasetPair parts = split_off(std::make_shared<Uneven>(3, 5), share);
    CHECK(parts.test->size() == tested);
    CHECK(parts.train->size() == 8 - tested);
    for (std::int64_t i = 0; i < 3; ++i) CHECK(parts.train->label(i) == i);
  }
  CHECK_THAT(dp::test::data_refusal([] { split_off(std::make_shared<Uneven>(3, 1), 0.5); }),
             Catch::Contains("no class has two images"));
  for (const double share : {0.0, 1.0, -0.1, 2.0, std::numeric_limits<double>::quiet_NaN()})
    CHECK_THROWS_WITH(split_off(std::make_shared<Uneven>(0, 5), share),
                      Catch::Contains("give a number between 0 and 1"));
}

TEST_CASE("image folders and lists without a test set can be opened for a split") {
  TemporaryFolder folder;
  for (const char* name : {"train/a/1.jpg", "train/a/2.jpg", "train/b/1.jpg", "train/b/2.jpg"})
    folder.write(name, dp::test::corpus_image("jpeg_420"));
  folder.write("train/a/notes.txt", {});
  const auto train = dp::datasets::find("imagefolder").open_train(folder.path(), 32, {});
  CHECK(train->image_shape() == dp::Shape{3, 32, 32});
  CHECK(train->size() == 4);
  const dp::DatasetPair parts = split_off(train, 0.5);
  CHECK((parts.train->size() == 2 && parts.test->size() == 2));
  CHECK(parts.test->class_names() == std::vector<std::string>{"a", "b"});
  CHECK(parts.train->passed_over().size() == 1);
  CHECK(parts.test->passed_over().empty());
  CHECK_THAT(parts.train->sample_id(0), Catch::Contains(".jpg "));
  CHECK_THAT(dp::test::data_refusal([] { dp::datasets::image_folder_train("/nowhere"); }),
             Catch::StartsWith("imagefolder: no folder /nowhere"));

  dp::test::write_text(folder / "train.csv", "train/a/1.jpg,x\ntrain/a/2.jpg,x\n");
  CHECK(split_off(dp::datasets::find("imagelist").open_train(folder.path(), 32, {}), 0.5).test->size() == 1);
  CHECK_THAT(dp::test::data_refusal([] { dp::datasets::image_list_train("/nowhere"); }),
             Catch::StartsWith("imagelist: no file /nowhere/train.csv"));
}
