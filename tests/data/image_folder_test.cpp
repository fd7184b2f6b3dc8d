// Folders of classes: valid content, refusals, and batches.
#include "data/datasets/image_folder.h"

#include <sys/stat.h>

#include <cmath>

#include "data/augment/crops.h"
#include "data/formats/rgb_image.h"
#include "data/image_files.h"
#include "data/refusal.h"
#include "dp/error.h"
#include "dp/loader.h"
#include "dp/trainer.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

using dp::test::corpus_image;
using dp::test::data_refusal;
using dp::test::TemporaryFolder;

namespace {

namespace fs = std::filesystem;

void put(const TemporaryFolder& folder, const std::string& name, const std::string& image = "jpeg_420") {
  folder.write(name, corpus_image(image));
}

// Three classes, created out of order, with file endings in every spelling.
void fill(const TemporaryFolder& folder, const std::string& test = "val") {
  put(folder, "train/zebra/1.jpg", "jpeg_420");
  put(folder, "train/ape/b.JPEG", "jpeg_422");
  put(folder, "train/ape/a.png", "png_rgba");
  put(folder, "train/ape/c.PNG", "jpeg_cmyk");  // the content determines the format, not the name
  put(folder, "train/cat/x.Jpg", "png_palette");
  put(folder, test + "/cat/y.jpeg", "jpeg_large");
  put(folder, test + "/ape/y.jpg", "jpeg_tiny");
}

std::vector<std::int32_t> labels(const dp::Dataset& dataset) {
  std::vector<std::int32_t> all;
  for (std::int64_t i = 0; i < dataset.size(); ++i) all.push_back(dataset.label(i));
  return all;
}

std::vector<float> images(const std::shared_ptr<const dp::Dataset>& dataset, dp::LoaderOptions options,
                          std::int64_t epoch = 0) {
  options.shuffle = false;
  dp::Loader loader(dataset, options);
  std::vector<float> all;
  for (const dp::Batch& batch : loader.epoch(epoch)) {
    const auto images = batch.images.span<float>();
    all.insert(all.end(), images.begin(), images.end());
  }
  return all;
}

}  // namespace

TEST_CASE("classes are sorted by name, images by class and name, in val or in test") {
  for (const char* test : {"val", "test"}) {
    const TemporaryFolder folder;
    fill(folder, test);
    folder.write("train/notes.txt", {});
    folder.write("train/ape/notes.txt", {});
    folder.write("train/ape/._a.png", {});
    const std::string path = folder.path();
    const dp::DatasetPair pair = dp::datasets::find("imagefolder").open(path, 42);
    CHECK(pair.train->image_shape() == dp::Shape{3, 224, 224});
    CHECK(pair.train->classes() == 3);
    CHECK(pair.test->classes() == 3);
    CHECK(pair.test->class_names() == std::vector<std::string>{"ape", "cat", "zebra"});
    CHECK(labels(*pair.train) == std::vector<std::int32_t>{0, 0, 0, 1, 2});
    CHECK(labels(*pair.test) == std::vector<std::int32_t>{0, 1});
    CHECK(pair.train->normalization().mean == std::vector<float>{0.485f, 0.456f, 0.406f});
    CHECK(pair.train->normalization().std == std::vector<float>{0.229f, 0.224f, 0.225f});
    const dp::ImageList list = dp::list_images(path + "/train", nullptr);
    CHECK(list.path("here", 0) == "here/ape/a.png");
    CHECK(list.path("here", 2) == "here/ape/c.PNG");
    CHECK(list.path("here", 4) == "here/zebra/1.jpg");
    for (std::int64_t i = 0; i < 5; ++i) CHECK(pair.train->image(i).size() == 3 * 224 * 224);
  }
  const TemporaryFolder both;
  fill(both, "val");
  put(both, "test/ape/1.jpg");
  CHECK(dp::datasets::image_folder(both.path()).test->size() == 2);
}

TEST_CASE("folders below a class are read as torchvision's ImageFolder reads them: by path, then by name") {
  const TemporaryFolder folder;
  for (const char* name : {"a/z.jpg", "a/b/2.jpg", "a/b/1.PNG", "a/b-c/x.jpg", "a/b/deep/er/y.jpeg",
                           "a/c.jpg/inside.jpg", "a/.hidden/h.jpg", "b/one/only.png"})
    put(folder, name);
  fs::create_directory(folder / "elsewhere");
  put(folder, "elsewhere/linked.jpg");
  const TemporaryFolder classes;
  fs::copy(folder / "a", classes / "a", fs::copy_options::recursive);
  fs::copy(folder / "b", classes / "b", fs::copy_options::recursive);
  fs::create_directory_symlink(folder / "elsewhere", classes / "a/link");
  const dp::ImageList list = dp::list_images(classes.path(), nullptr);
  std::vector<std::string> paths;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(list.labels.size()); ++i) paths.push_back(list.path("", i));
  CHECK(paths == std::vector<std::string>{"/a/z.jpg", "/a/b/1.PNG", "/a/b/2.jpg", "/a/b-c/x.jpg", "/a/b/deep/er/y.jpeg",
                                          "/a/c.jpg/inside.jpg", "/a/link/linked.jpg", "/b/one/only.png"});
  CHECK(list.passed_over.empty());
}

TEST_CASE("links that repeat folders without end are refused") {
  const TemporaryFolder folder;
  put(folder, "a/sub/1.jpg");
  const auto said = [&] { return data_refusal([&] { dp::list_images(folder.path(), nullptr); }); };
  for (const std::string target : {".", "..", "../..", "../../a"}) {
    fs::create_directory_symlink(target, folder / "a/sub/loop");
    CHECK_THAT(said(), Catch::StartsWith(folder.path() + "/a/sub/loop/") &&
                           Catch::EndsWith("a link to a folder that contains it; remove the link"));
    fs::remove(folder / "a/sub/loop");
  }
  fs::create_directory_symlink("itself", folder / "a/sub/itself");  // leads nowhere, and is a file without an ending
  CHECK(dp::list_images(folder.path(), nullptr).labels.size() == 1);
  fs::remove(folder / "a/sub/itself");
  for (int level = 0; level < 40; ++level) {  // each level doubles the number of paths
    const std::string name = folder / ("a/level" + std::to_string(level));
    fs::create_directory(name);
    for (const char* link : {"/left", "/right"})
      fs::create_directory_symlink("../level" + std::to_string(level + 1), name + link);
  }
  fs::create_directory(folder / "a/level40");
  CHECK_THAT(said(), Catch::Contains("/a: has more than 100,000 folders in it"));
}

TEST_CASE("a path to a part, to a class, or to the folder above names the folder that was meant") {
  const TemporaryFolder folder;
  fill(folder);
  const std::string path = folder.path();
  const auto said = [](const std::string& given) { return data_refusal([&] { dp::datasets::image_folder(given); }); };
  for (const char* given : {"/train", "/train/", "/val", "/train/ape", "/val/../train"})
    CHECK_THAT(said(path + given), Catch::Contains("has no train/, but " + path +
                                                   " has train/ and val/ (or test/); "
                                                   "give that folder: --data-path " +
                                                   path));
  const TemporaryFolder above;
  fs::rename(path + "/train", above / "train"), fs::rename(path + "/val", above / "val");
  fs::create_directories(above / "all/set");
  fs::rename(above / "train", above / "all/set/train"), fs::rename(above / "val", above / "all/set/val");
  CHECK_THAT(said(above / "all"), Catch::EndsWith("--data-path " + above.path() + "/all/set"));
  fs::rename(above / "all/set/val", above / "all/set/Validation");
  CHECK_THAT(said(above / "all/set"), Catch::Contains("neither val/ nor test/, but Validation/; rename it to val/"));
  fs::rename(above / "all/set/train", above / "all/set/Training");
  CHECK_THAT(said(above / "all/set"), Catch::Contains("has no train/, but Training/; rename it to train/"));
  above.write("file", {});
  CHECK_THAT(said(above / "file"), Catch::Contains("file is not a folder; "));
}

TEST_CASE("files that are not images are counted by their endings, and the data set's line names them") {
  const TemporaryFolder folder;
  fill(folder, "val");
  folder.write("train/ape/a.gif", {});
  folder.write("train/ape/b.GIF", {});
  folder.write("train/cat/notes", {});
  folder.write("val/cat/c.bmp", {});
  folder.write("val/cat/.hidden.bmp", {});
  folder.write("train/cat/more/d.gif", {});
  const dp::DatasetPair pair = dp::datasets::image_folder(folder.path());
  using Counts = std::vector<std::pair<std::string, std::int64_t>>;
  CHECK(pair.train->passed_over() == Counts{{".gif", 3}, {"without an ending", 1}});
  CHECK(pair.test->passed_over() == Counts{{".bmp", 1}});
  CHECK_THAT(
      dp::describe_data(pair),
      Catch::EndsWith("\nignored files that are not .jpg, .jpeg, .png or .webp: 3 .gif, 1 .bmp, 1 without an ending"));
}

TEST_CASE("a folder with another structure is rejected with what is missing") {
  const TemporaryFolder folder;
  const std::string path = folder.path();
  const auto said = [&] { return data_refusal([&] { dp::datasets::image_folder(path); }); };
  CHECK_THAT(data_refusal([&] { dp::datasets::image_folder(path + "/nowhere"); }),
             Catch::StartsWith("imagefolder: no folder " + path + "/nowhere; lay the images out as"));
  CHECK_THAT(said(), Catch::Contains(path + " has no train/") && Catch::Contains("--data-path"));
  fs::create_directory(folder / "train");
  CHECK_THAT(said(), Catch::Contains(" has neither val/ nor test/"));
  fs::create_directory(folder / "val");
  CHECK_THAT(said(), Catch::StartsWith(path + "/train: no images in it"));
  fill(folder);
  CHECK_NOTHROW(dp::datasets::image_folder(path));
  put(folder, "val/dog/1.jpg");
  CHECK_THAT(said(), Catch::StartsWith(path + "/val/dog: a class without training images"));
  fs::remove_all(folder / "val/dog");
  fs::create_directory(folder / "train/dog");
  CHECK_THAT(said(), Catch::StartsWith(path + "/train/dog: a class without images"));
  fs::create_directory(folder / "val/dog");
  put(folder, "train/dog/1.jpg");
  CHECK_NOTHROW(dp::datasets::image_folder(path));  // a class without test images
  for (const int side : {-1, 0, 4097})
    CHECK_THROWS_WITH(dp::datasets::image_folder(path, side),
                      "imagefolder: the side of the images is " + std::to_string(side) + "; give 1 to 4096");
  for (const int side : {1, 4096})
    CHECK(dp::datasets::image_folder(path, side).train->image_shape() == dp::Shape{3, side, side});
  for (const double part : {0.0, 0.049, 1.001, std::nan("")})
    CHECK_THROWS_WITH(dp::datasets::image_folder(path, 8, {.crop_pct = part}),
                      Catch::Contains("of the image's shorter side; give 0.05 to 1"));
}

TEST_CASE("an image is resized as the data set was opened, for training and for evaluation") {
  const TemporaryFolder folder;
  fill(folder);
  const auto read = [&](const dp::Resizing& resizing, bool training) {
    const auto test = dp::datasets::image_folder(folder.path(), 21, resizing).test;
    std::vector<std::uint8_t> bytes(3 * 21 * 21);
    dp::Random random(1, dp::RandomUse::augment);
    test->read(1, bytes, training ? &random : nullptr);  // jpeg_large
    return bytes;
  };
  dp::RgbImage image;
  dp::decode_image("", corpus_image("jpeg_large"), image);
  const dp::RgbView whole{image.pixels.data(), image.width, image.height, 3 * image.width};
  dp::Resizer resizer;
  std::vector<std::uint8_t> expected(3 * 21 * 21);
  for (const dp::Interpolation by :
       {dp::Interpolation::nearest, dp::Interpolation::bilinear, dp::Interpolation::bicubic}) {
    const dp::CentralCrop crop = dp::central_crop(image.width, image.height, 21, 0.6);
    resizer.resize(whole, crop.width, crop.height, crop.window, by, expected);
    CHECK(read({by, 0.6}, false) == expected);
    CHECK(read({by, 0.7}, false) != expected);
    dp::Random random(1, dp::RandomUse::augment);
    const dp::Region part = dp::random_resized_crop(image.width, image.height, random);
    resizer.resize(whole.part(part), 21, 21, {0, 0, 21, 21}, by, expected);
    CHECK(read({by, 0.6}, true) == expected);
  }
}

TEST_CASE("the id of an image is its path below its class, and its size") {
  const TemporaryFolder folder;
  fill(folder);
  const auto train = dp::datasets::image_folder(folder.path()).train;
  const std::string image = folder / "train/ape/a.png";
  CHECK(train->sample_id(0) == "a.png " + std::to_string(fs::file_size(image)));
  fs::remove(image);
  CHECK(train->sample_id(0) == "a.png ?");
}

TEST_CASE("the bytes to read an image are those of the largest file of a sample, encoded and decoded") {
  const TemporaryFolder folder;
  fill(folder);
  const auto train = dp::datasets::image_folder(folder.path()).train;
  put(folder, "train/ape/a.png", "jpeg_large");
  const std::vector<std::uint8_t> bytes = corpus_image("jpeg_large");
  CHECK(train->bytes_to_read() == bytes.size() + dp::bytes_to_decode(bytes));
  CHECK(dp::bytes_to_decode(bytes) > 0);
}

TEST_CASE("images of a folder are cropped and flipped while they are read") {
  const TemporaryFolder folder;
  fill(folder);
  const auto train = dp::datasets::image_folder(folder.path(), 8).train;
  CHECK(train->varies());
  CHECK(train->augmentation() == dp::Augmentation{.flip = dp::Flip::random});
}

TEST_CASE("at most a thousand endings of files that are not images are counted") {
  const TemporaryFolder folder;
  put(folder, "a/1.jpg");
  put(folder, "b/1.jpg");
  for (int i = 0; i < 1000; ++i) folder.write("a/shot." + std::to_string(i), {});
  folder.write("b/shot.999", {});
  folder.write("b/shot.1000", {});
  const dp::ImageList list = dp::list_images(folder.path(), nullptr);
  CHECK(list.passed_over.size() == 1000);
  CHECK(list.passed_over.at(".0") == 1);
  CHECK(list.passed_over.at(".999") == 2);
  CHECK_FALSE(list.passed_over.contains(".1000"));
}

TEST_CASE("a folder that cannot be listed is rejected with the reason of the system") {
  const TemporaryFolder folder;
  const std::string none = folder / "none";
  CHECK(data_refusal([&] { dp::list_images(none, nullptr); }) ==
        none + ": cannot be listed (No such file or directory); make it a readable folder");
}

TEST_CASE("an unreadable image is named in its place, and the other images are still read") {
  const TemporaryFolder folder;
  fill(folder);
  const std::string path = folder.path(), bad = path + "/train/ape/b.JPEG";
  const auto said = [&] {
    const dp::DatasetPair pair = dp::datasets::image_folder(path, 32);
    dp::Loader loader(pair.train, {.batch_size = 1, .shuffle = false, .workers = 2});
    loader.start(0);
    REQUIRE(loader.next());
    const std::string message = data_refusal([&] { loader.next(); });
    loader.start(0, 2);
    REQUIRE(loader.next());
    return message;
  };
  fs::resize_file(bad, 200);
  CHECK_THAT(said(), Catch::StartsWith(bad + ": "));
  fs::resize_file(bad, 0);
  CHECK_THAT(said(), Catch::StartsWith(bad + ": the file is empty"));
  fs::resize_file(bad, (std::uintmax_t{256} << 20) + 1);
  CHECK_THAT(said(), Catch::StartsWith(bad + ": expected at most 268435456 bytes"));
  fs::remove(bad);
  REQUIRE(::mkfifo(bad.c_str(), 0600) == 0);
  CHECK(said() == bad + ": is not a regular file; make it a readable image, or remove it");
  const dp::DatasetPair gone = dp::datasets::image_folder(path, 32);
  fs::remove(bad);
  CHECK_THAT(data_refusal([&] { gone.train->image(1); }),
             Catch::StartsWith(bad + ": cannot be opened (No such file or directory); make it a readable image"));
}

TEST_CASE("random crops depend on seed, epoch and sample, not on threads or batches") {
  const TemporaryFolder folder;
  fill(folder);
  const auto train = dp::datasets::image_folder(folder.path(), 40).train;
  const auto plain = images(train, {.batch_size = 2});
  const auto crops = images(train, {.batch_size = 2, .augment = true});
  CHECK(plain.size() == 5 * 3 * 40 * 40);
  CHECK(plain == images(train, {.batch_size = 5, .workers = 3}, 4));
  CHECK(crops != plain);
  CHECK(crops == images(train, {.batch_size = 3, .augment = true, .workers = 3}));
  CHECK(crops != images(train, {.batch_size = 2, .augment = true}, 1));
  CHECK(crops != images(train, {.batch_size = 2, .augment = true, .seed = 43}));
}
