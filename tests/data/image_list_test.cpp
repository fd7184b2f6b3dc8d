// CSV lists of images: what is read, and which lines are refused.
#include "data/datasets/image_folder.h"

#include "data/image_files.h"
#include "data/refusal.h"
#include "dp/dataset.h"
#include "dp/error.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

using dp::test::corpus_image;
using dp::test::data_refusal;
using dp::test::TemporaryFolder;
using dp::test::write_text;

namespace {

// A folder with three images and two lists.
struct Listed {
  explicit Listed(const std::string& train, const std::string& val = "a.jpg,cat\n",
                  const std::string& name = "val.csv") {
    for (const char* image : {"a.jpg", "more/b.jpg", "odd, \"name\".jpg"})
      folder.write(image, corpus_image("jpeg_420"));
    write_text(folder / "train.csv", train);
    write_text(folder / name, val);
  }
  dp::DatasetPair open() const { return dp::datasets::find("imagelist").open(folder.path(), 42); }
  std::string refusal() const {
    return data_refusal([&] { open(); });
  }
  TemporaryFolder folder;
};

std::vector<std::int32_t> labels_in(const dp::Dataset& dataset) {
  std::vector<std::int32_t> all;
  for (std::int64_t i = 0; i < dataset.size(); ++i) all.push_back(dataset.label(i));
  return all;
}

}  // namespace

TEST_CASE("a listed image has the class of its line and the same pixels as in an image folder") {
  const Listed listed("a.jpg,dog\nmore/b.jpg,cat\n");
  const dp::DatasetPair data = listed.open();
  CHECK(data.train->class_names() == std::vector<std::string>{"cat", "dog"});
  CHECK(labels_in(*data.train) == std::vector<std::int32_t>{1, 0});
  CHECK(labels_in(*data.test) == std::vector<std::int32_t>{0});
  CHECK(data.test->classes() == 2);
  CHECK(data.train->image_shape() == dp::Shape{3, 224, 224});
  CHECK_THAT(data.train->sample_id(1), Catch::StartsWith("more/b.jpg "));
  TemporaryFolder folders;
  for (const char* image : {"train/dog/a.jpg", "val/dog/a.jpg"}) folders.write(image, corpus_image("jpeg_420"));
  CHECK(data.train->image(0) == dp::datasets::image_folder(folders.path()).train->image(0));
}

TEST_CASE("a list may have a header, quotes, spaces, more fields, and any line ends") {
  for (const char* const text : {
           "path,label\na.jpg,dog\n\"odd, \"\"name\"\".jpg\",cat",
           "\xef\xbb\xbfImage,Class,split\r\n a.jpg , dog ,train\r\n\r\n\"odd, \"\"name\"\".jpg\" ,\"cat\",\r\n",
           "\n\na.jpg,dog\r\"odd, \"\"name\"\".jpg\",cat,\"1\n2\"\r\r",
       }) {
    const Listed listed(text);
    const dp::DatasetPair data = listed.open();
    INFO(text);
    CHECK(labels_in(*data.train) == std::vector<std::int32_t>{1, 0});
    CHECK(data.train->image(1) == data.train->image(0));
  }
  const Listed once("a.jpg,label\npath,label\n", "a.jpg,label\n");  // a header is the first line only
  CHECK(once.open().train->size() == 2);
}

TEST_CASE("classes that are whole numbers are sorted by value, others by their bytes") {
  CHECK(Listed("a.jpg,10\na.jpg,9\na.jpg,0\n", "a.jpg,9\n").open().train->class_names() ==
        std::vector<std::string>{"0", "9", "10"});
  CHECK(Listed("a.jpg,10\na.jpg,9\na.jpg,x\n", "a.jpg,9\n").open().train->class_names() ==
        std::vector<std::string>{"10", "9", "x"});
  CHECK(Listed("a.jpg,010\na.jpg,9\n", "a.jpg,9\n").open().train->class_names() ==
        std::vector<std::string>{"010", "9"});
}

TEST_CASE("test.csv is read where there is no val.csv, and a path may begin with a slash") {
  const Listed listed("more/b.jpg,cat\n", "a.jpg,cat\nmore/b.jpg,cat\n", "test.csv");
  CHECK(listed.open().test->size() == 2);
  write_text(listed.folder / "val.csv", listed.folder / "a.jpg" + ",cat\n");
  CHECK(listed.open().test->size() == 1);
  CHECK(listed.open().test->image(0) == listed.open().train->image(0));
}

TEST_CASE("a bad line is refused with its file and number") {
  const std::string train = "train.csv:";
  CHECK_THAT(Listed("a.jpg,dog\n\nb.jpg\n").refusal(), Catch::Contains(train + "3: only one field"));
  CHECK_THAT(Listed("a.jpg,dog\n,cat\n").refusal(), Catch::Contains(train + "2: an empty field"));
  CHECK_THAT(Listed("a.jpg,dog\na.jpg, \n").refusal(), Catch::Contains(train + "2: an empty field"));
  CHECK_THAT(Listed("\"a.jpg,dog\na.jpg,dog\n").refusal(), Catch::Contains(train + "1: a quoted field without"));
  CHECK_THAT(Listed("\"a.jpg\"x,dog\n").refusal(), Catch::Contains(train + "1: a character behind a quoted field"));
  CHECK_THAT(Listed("\"a\nb\",dog\nc\n").refusal(), Catch::Contains(train + "3: only one field"));
  CHECK_THAT(Listed("a.jpg," + std::string(5000, 'x')).refusal(),
             Catch::Contains(train + "1: a field of more than 4096"));
  CHECK_THAT(Listed(std::string("a.jpg\0,dog\n", 11)).refusal(), Catch::Contains("with a zero byte"));
  CHECK_THAT(Listed("a.jpg,dog\n", "path,label\na.jpg,cat\n").refusal(),
             Catch::Contains("val.csv:2: class 'cat' has no training images"));
}

namespace {

std::string json_refusal(const std::string& train, const std::string& set = "imagelist") {
  TemporaryFolder folder;
  folder.write("a.jpg", corpus_image("jpeg_420"));
  write_text(folder / "train.jsonl", train);
  write_text(folder / "val.jsonl", train);
  return data_refusal([&] { dp::datasets::find(set).open(folder.path(), 42); });
}

}  // namespace

TEST_CASE("JSON lines list the same images as CSV, with Hugging Face's name of a path too, and further keys") {
  const Listed csv("a.jpg,dog\n\"odd, \"\"name\"\".jpg\",cat\n");
  TemporaryFolder folder;
  for (const char* image : {"a.jpg", "odd, \"name\".jpg"}) folder.write(image, corpus_image("jpeg_420"));
  write_text(folder / "train.jsonl",
             "\xef\xbb\xbf{\"path\": \"a.jpg\", \"label\": \"dog\", \"other\": {\"deep\": [1]}}\r\n\n  \n"
             R"({"label": "cat", "file_name": "odd, \"name\".jpg"})");
  write_text(folder / "test.jsonl", R"({"image": "a.jpg", "label": "cat"})"
                                    "\n");
  const dp::DatasetPair data = dp::datasets::image_list(folder.path()), same = csv.open();
  CHECK(data.train->class_names() == same.train->class_names());
  CHECK(labels_in(*data.train) == labels_in(*same.train));
  CHECK(data.train->image(1) == same.train->image(1));
  CHECK(labels_in(*data.test) == std::vector<std::int32_t>{0});
  write_text(folder / "train.csv", "a.jpg,cat\n");  // is read before train.jsonl
  CHECK(dp::datasets::image_list(folder.path()).train->size() == 1);
}

TEST_CASE("labels in JSON lines may be numbers, and targets a number or a list") {
  TemporaryFolder folder;
  folder.write("a.jpg", corpus_image("jpeg_420"));
  write_text(folder / "train.jsonl", "{\"path\":\"a.jpg\",\"label\":10}\n{\"path\":\"a.jpg\",\"label\":9}\n");
  write_text(folder / "val.jsonl", "{\"path\":\"a.jpg\",\"label\":9}\n");
  CHECK(dp::datasets::image_list(folder.path()).train->class_names() == std::vector<std::string>{"9", "10"});
  write_text(folder / "train.jsonl", "{\"path\":\"a.jpg\",\"targets\":[0.1,-2e3]}\n");
  write_text(folder / "val.jsonl", "{\"path\":\"a.jpg\",\"targets\":[3,4]}\n");
  const dp::DatasetPair data = dp::datasets::image_targets(folder.path());
  std::vector<float> targets(2);
  data.train->targets(0, targets);
  CHECK(targets == std::vector<float>{0.1f, -2e3f});
  write_text(folder / "train.jsonl", "{\"path\":\"a.jpg\",\"targets\":7}\n");
  write_text(folder / "val.jsonl", "{\"path\":\"a.jpg\",\"targets\":8}\n");
  CHECK(dp::datasets::image_targets(folder.path()).test->classes() == 1);
}

TEST_CASE("the column sample_weight may be anywhere behind the path, in any case, and is no class") {
  for (const char* const list : {"path,sample_weight,class\na.jpg,2,dog\nmore/b.jpg,0.5,cat\n",
                                 "path,class,Sample_Weight\na.jpg,dog,2\nmore/b.jpg,cat,0.5\n"}) {
    const Listed listed(list);
    const auto data = listed.open().train;
    CHECK(data->class_names() == std::vector<std::string>{"cat", "dog"});
    CHECK(data->weight(0) == 2);
    CHECK(data->weight(1) == 0.5f);
  }
}

TEST_CASE("the key sample_weight of JSON lines has the weight of an image") {
  TemporaryFolder folder;
  folder.write("a.jpg", corpus_image("jpeg_420"));
  write_text(folder / "train.jsonl", R"({"path": "a.jpg", "label": "cat", "sample_weight": 0.5}
{"sample_weight": 3, "path": "a.jpg", "label": "dog"})");
  write_text(folder / "val.jsonl", R"({"path": "a.jpg", "label": "cat"})");
  const auto data = dp::datasets::image_list(folder.path()).train;
  REQUIRE(data->has_weights());
  CHECK(data->weight(0) == 0.5f);
  CHECK(data->weight(1) == 3);
}

TEST_CASE("a bad JSON line is refused with its file and number") {
  const std::string good = R"({"path": "a.jpg", "label": "cat"})";
  const auto second = [&](const std::string& line) { return json_refusal(good + "\n" + line); };
  const std::string at = "train.jsonl:2: ";
  for (const char* line : {"[1]", "{", "{} {}", "path", "{\"path\": 1e400}"})
    CHECK_THAT(second(line), Catch::Contains(at + "no JSON object; each line is such as {\"path\": \"cats/1.jpg\""));
  CHECK_THAT(second("{}"), Catch::Contains(at + "no \"path\""));
  CHECK_THAT(second(R"({"path": "a.jpg"})"), Catch::Contains(at + "no \"label\""));
  CHECK_THAT(second(R"({"path": "a.jpg", "label": ["cat"]})"),
             Catch::Contains(at + "a value that is neither text nor"));
  CHECK_THAT(second(R"({"path": null, "label": "cat"})"), Catch::Contains(at + "a value that is neither text nor"));
  CHECK_THAT(second(R"({"path": "", "label": "cat"})"), Catch::Contains(at + "an empty value"));
  CHECK_THAT(second("{\"path\": \"a\\u0000\", \"label\": \"cat\"}"), Catch::Contains("with a zero byte"));
  CHECK_THAT(second(R"({"path": "a.jpg", "label": ")" + std::string(5000, 'x') + "\"}"), Catch::Contains("4096 bytes"));
  CHECK_THAT(second(std::string(100000, '[')), Catch::Contains(at + "no JSON object"));
  CHECK_THAT(json_refusal(""), Catch::Contains("train.jsonl: no images in it"));
  CHECK_THAT(json_refusal(R"({"path": "a.jpg", "targets": []})", "imagetargets"), Catch::Contains("an empty value"));
  CHECK_THAT(json_refusal(R"({"path": "a.jpg", "targets": ["x"]})", "imagetargets"),
             Catch::Contains("'x' is not a finite number"));
}

TEST_CASE("a missing list, an empty list and a missing first image are refused") {
  CHECK_THAT(Listed("path,label\n").refusal(), Catch::Contains("train.csv: no images in it"));
  CHECK_THAT(Listed("a.jpg,dog\n", "").refusal(), Catch::Contains("val.csv: no images in it"));
  const Listed listed("no.jpg,cat\n");
  CHECK_THAT(listed.refusal(), Catch::Contains("its first image, " + listed.folder / "no.jpg" + ", does not exist"));
  const Listed elsewhere("a.jpg,cat\n", "a.jpg,cat\n", "valid.csv");
  CHECK_THAT(elsewhere.refusal(), Catch::StartsWith("imagelist: no file " + elsewhere.folder / "test.csv") &&
                                      Catch::Contains("set --data-path to their folder"));
  CHECK_THROWS_WITH(dp::datasets::image_list(listed.folder.path(), 0),
                    Catch::Contains("imagelist: the side of the images is 0; give 1 to 4096"));
}

TEST_CASE("an image that cannot be read is replaced by the next of its class in the list") {
  const Listed listed("a.jpg,cat\nmore/b.jpg,cat\n");
  write_text(listed.folder / "a.jpg", "no image");
  const dp::DatasetPair data = listed.open();
  CHECK_THAT(data_refusal([&] { data.train->image(0); }), Catch::Contains(listed.folder / "a.jpg"));
  CHECK(dp::replace_bad_images(data.train)->image(0) == data.train->image(1));
}
