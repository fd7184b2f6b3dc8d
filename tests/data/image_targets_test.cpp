// CSV lists of images with targets: what is read, which lines are refused, and the loader's batches.
#include "data/image_files.h"
#include "data/refusal.h"
#include "dp/dataset.h"
#include "dp/error.h"
#include "dp/loader.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

using dp::test::corpus_image;
using dp::test::data_refusal;
using dp::test::TemporaryFolder;
using dp::test::write_text;

namespace {

struct ListedTargets {
  explicit ListedTargets(const std::string& train, const std::string& val = "a.jpg,0,1\n") {
    for (const char* image : {"a.jpg", "b.jpg"}) folder.write(image, corpus_image("jpeg_420"));
    write_text(folder / "train.csv", train);
    write_text(folder / "val.csv", val);
  }
  dp::DatasetPair open() const { return dp::datasets::find("imagetargets").open_sized(folder.path(), 8, {}); }
  std::string refusal() const {
    const std::string text = data_refusal([&] { open(); });
    return text.substr(text.rfind('/') + 1);
  }
  TemporaryFolder folder;
};

std::vector<float> targets_of(const dp::Dataset& dataset, std::int64_t index) {
  std::vector<float> targets(static_cast<std::size_t>(dataset.classes()));
  dataset.targets(index, targets);
  return targets;
}

}  // namespace

TEST_CASE("a listed image has the targets of its line, with or without a line of names before them") {
  for (const char* const text : {"a.jpg,0.5,-2\nb.jpg,1e3, 7 \n", "path,x,y\r\n\"a.jpg\",\"0.5\",-2\r\nb.jpg,1e3,7"}) {
    const dp::DatasetPair data = ListedTargets(text).open();
    REQUIRE(data.train->size() == 2);
    CHECK(data.train->has_targets());
    CHECK(data.train->classes() == 2);
    CHECK(data.train->class_names().empty());
    CHECK(targets_of(*data.train, 0) == std::vector<float>{0.5f, -2});
    CHECK(targets_of(*data.train, 1) == std::vector<float>{1000, 7});
    CHECK(targets_of(*data.test, 0) == std::vector<float>{0, 1});
    CHECK(data.train->label(1) == 0);
    CHECK(data.train->image_shape() == dp::Shape{3, 8, 8});
  }
}

TEST_CASE("lines without targets, with other counts, or with what is no finite number are refused") {
  CHECK(ListedTargets("a.jpg\n").refusal() ==
        "train.csv:1: only one field; each line is a path and its targets, separated by commas");
  CHECK(ListedTargets("a.jpg,1,2\nb.jpg,\n").refusal() ==
        "train.csv:2: an empty field; each line is a path and its targets, separated by commas");
  CHECK(ListedTargets("a.jpg,1,2\nb.jpg,3\n").refusal() ==
        "train.csv:2: 1 targets, but other images have 2; give each image as many");
  CHECK(ListedTargets("a.jpg,1,2\n", "a.jpg,1,2,3\n").refusal() ==
        "val.csv:1: 3 targets, but other images have 2; give each image as many");
  for (const std::string bad : {"cat", "nan", "inf", "1e99", "1x", "0x10"})
    CHECK(ListedTargets("a.jpg,1,2\nb.jpg,3," + bad + "\n").refusal() ==
          "train.csv:2: '" + bad + "' is not a finite number; targets are such as 0.5 or -2");
  CHECK(ListedTargets("path,x\n").refusal() ==
        "train.csv: no images in it; each line is a path and its targets, separated by commas");
}

TEST_CASE("batches have the targets of their samples") {
  const ListedTargets listed("a.jpg,1,2\nb.jpg,3,4\na.jpg,5,6\nb.jpg,7,8\na.jpg,9,10\n");
  const dp::DatasetPair data = listed.open();
  dp::Loader loader(data.train, {.batch_size = 2});
  std::int64_t rows = 0;
  for (std::int64_t epoch = 0; epoch < 2; ++epoch)
    for (const dp::Batch& batch : loader.epoch(epoch)) {
      REQUIRE(batch.targets.shape() == dp::Shape{batch.size(), 2});
      for (std::int64_t row = 0; row < batch.size(); ++row, ++rows) {
        const auto first = static_cast<float>(2 * batch.samples.data<std::int64_t>()[row] + 1);
        CHECK(batch.targets.data<float>()[2 * row] == first);
        CHECK(batch.targets.data<float>()[2 * row + 1] == first + 1);
      }
    }
  CHECK(rows == 10);
}

TEST_CASE("a column with the name sample_weight has the weights of the images, and batches have them on request") {
  const ListedTargets listed("path,x,sample_weight,y\na.jpg,1,0.5,2\nb.jpg,3,2,4\na.jpg,5,0,6\n");
  const dp::DatasetPair data = listed.open();
  CHECK(data.train->classes() == 2);
  CHECK(data.train->has_weights());
  CHECK_FALSE(data.test->has_weights());
  CHECK(targets_of(*data.train, 1) == std::vector<float>{3, 4});
  CHECK(data.train->weight(1) == 2);
  CHECK(dp::split_off(data.train, 0.5).train->has_weights());
  dp::Loader plain(data.train, {.batch_size = 3, .shuffle = false});
  for (const dp::Batch& batch : plain.epoch(0)) CHECK(batch.targets.shape() == dp::Shape{3, 2});
  dp::Loader weighted(data.train, {.batch_size = 3, .shuffle = false, .targets = {.sample_weights = true}});
  for (const dp::Batch& batch : weighted.epoch(0)) {
    REQUIRE(batch.targets.shape() == dp::Shape{3, 3});
    const auto values = batch.targets.span<float>();
    CHECK(std::vector<float>(values.begin(), values.end()) == std::vector<float>{1, 2, 0.5f, 3, 4, 2, 5, 6, 0});
  }
  CHECK_THROWS_WITH(dp::Loader(data.test, {.targets = {.sample_weights = true}}),
                    "the data set has no weights of samples");
}

TEST_CASE("weights that are no numbers from 0 on, or that only some images have, are refused") {
  for (const std::string bad : {"-1", "nan", "much"})
    CHECK(ListedTargets("path,x,sample_weight\na.jpg,1,2\nb.jpg,1," + bad + "\n").refusal() ==
          "train.csv:3: '" + bad + "' is no weight; give a number from 0 on");
  CHECK(ListedTargets("path,x,sample_weight\na.jpg,1,2\nb.jpg,1\n").refusal() ==
        "train.csv:3: no sample_weight, unlike other images");
}

TEST_CASE("a part split off keeps the targets, and images with targets are not replaced by others") {
  const dp::DatasetPair data = ListedTargets("a.jpg,1\nb.jpg,3\na.jpg,5\nb.jpg,7\n", "a.jpg,0\n").open();
  const dp::DatasetPair parts = dp::split_off(data.train, 0.5);
  CHECK((parts.train->has_targets() && parts.test->has_targets()));
  float sum = 0;
  for (const auto& part : {parts.train, parts.test})
    for (std::int64_t i = 0; i < part->size(); ++i) sum += targets_of(*part, i)[0];
  CHECK(sum == 16);
  CHECK_THROWS_WITH(dp::replace_bad_images(data.train),
                    "--bad-images skip: an image cannot be replaced by one with other targets; remove bad images from "
                    "the list");
}
