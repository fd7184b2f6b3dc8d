#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "data/idx_bytes.h"
#include "dp/dataset.h"
#include "dp/error.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

using dp::test::gzip;
using dp::test::idx_images;
using dp::test::idx_labels;
using dp::test::TemporaryFolder;

namespace {

void write_file(const TemporaryFolder& folder, const std::string& name, const dp::test::Bytes& bytes) {
  folder.write(name, bytes);
}

void write_plain(const TemporaryFolder& folder, const std::string& prefix) {
  write_file(folder, prefix + "train-images-idx3-ubyte", idx_images(4));
  write_file(folder, prefix + "train-labels-idx1-ubyte", idx_labels(4));
  write_file(folder, prefix + "t10k-images-idx3-ubyte", idx_images(2));
  write_file(folder, prefix + "t10k-labels-idx1-ubyte", idx_labels(2));
}

void check_found(const dp::DatasetPair& pair) {
  CHECK(pair.train->size() == 4);
  CHECK(pair.test->size() == 2);
}

std::string refusal(const TemporaryFolder& folder) {
  try {
    dp::datasets::mnist(folder.path());
  } catch (const dp::Error& error) {
    CHECK(error.code() == dp::ErrorCode::data);
    CHECK_THAT(error.what(), Catch::Contains("--dataset digits"));
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
    return error.what();
  }
  FAIL("accepted");
  return {};
}

}  // namespace

TEST_CASE("MNIST is found in the folder, in raw, and in torchvision's folders") {
  for (const char* prefix : {"", "raw/", "MNIST/raw/"}) {
    const TemporaryFolder folder;
    write_plain(folder, prefix);
    check_found(dp::datasets::mnist(folder.path()));
    check_found(dp::datasets::find("mnist").open(folder.path(), 42));
  }
  const TemporaryFolder folder;
  write_plain(folder, "FashionMNIST/raw/");
  check_found(dp::datasets::fashion_mnist(folder.path()));
  check_found(dp::datasets::find("fashion_mnist").open(folder.path(), 42));
  CHECK_THROWS_AS(dp::datasets::mnist(folder.path()), dp::Error);
}

TEST_CASE("MNIST and Fashion-MNIST have the customary mean and standard deviation, clothes have names") {
  const TemporaryFolder folder;
  write_plain(folder, "");
  const dp::DatasetPair digits = dp::datasets::mnist(folder.path()),
                        clothes = dp::datasets::fashion_mnist(folder.path());
  for (const auto* part : {&digits.train, &digits.test}) {
    CHECK((*part)->normalization().mean == std::vector<float>{0.1307f});
    CHECK((*part)->normalization().std == std::vector<float>{0.3081f});
    CHECK((*part)->class_names().empty());
  }
  for (const auto* part : {&clothes.train, &clothes.test}) {
    CHECK((*part)->normalization().mean == std::vector<float>{0.2860f});
    CHECK((*part)->normalization().std == std::vector<float>{0.3530f});
    CHECK((*part)->class_names().size() == 10);
    CHECK((*part)->class_names().at(9) == "Ankle boot");
  }
}

TEST_CASE("plain MNIST files take precedence over gzipped ones, and earlier folders over later ones") {
  const TemporaryFolder folder;
  write_plain(folder, "raw/");
  write_file(folder, "raw/train-images-idx3-ubyte.gz", gzip(idx_images(9)));
  write_file(folder, "raw/t10k-images.idx3-ubyte", idx_images(9));
  write_file(folder, "MNIST/raw/train-images-idx3-ubyte", idx_images(9));
  check_found(dp::datasets::mnist(folder.path()));
}

TEST_CASE("MNIST is found under every spelling of its names") {
  const TemporaryFolder folder;
  write_file(folder, "train-images.idx3-ubyte", idx_images(4));
  write_file(folder, "train-labels-idx1-ubyte.gz", gzip(idx_labels(4)));
  write_file(folder, "t10k-images.idx3-ubyte.gz", gzip(idx_images(2)));
  write_file(folder, "t10k-labels-idx1-ubyte", idx_labels(2));
  check_found(dp::datasets::mnist(folder.path()));
}

TEST_CASE("missing MNIST files are named with the folders searched and the remedy") {
  const TemporaryFolder folder;
  const std::string path = folder.path();
  const std::string none = refusal(folder);
  for (const std::string& part :
       {path + ",", path + "/raw", path + "/MNIST/raw", std::string("train-images-idx3-ubyte"),
        std::string("t10k-labels-idx1-ubyte"), std::string("--data-path")})
    CHECK_THAT(none, Catch::Contains(part));
  write_plain(folder, "raw/");
  std::filesystem::remove(std::filesystem::path(folder.path()) / "raw/t10k-labels-idx1-ubyte");
  CHECK_THAT(refusal(folder), Catch::Contains(path + "/raw lacks t10k-labels-idx1-ubyte"));
  CHECK_THAT(refusal(folder), Catch::Contains("`dp_train fetch mnist --data-path " + path + "`"));
  write_plain(folder, "MNIST/raw/");
  check_found(dp::datasets::mnist(path));
  CHECK_THROWS_WITH(dp::datasets::mnist(path + "/nowhere"), Catch::Contains("no such folder"));
  CHECK_THROWS_WITH(dp::datasets::mnist(path + "/raw/train-images-idx3-ubyte"),
                    Catch::StartsWith("mnist: " + path + "/raw/train-images-idx3-ubyte is a file, not a folder; ") &&
                        Catch::Contains("--data-path " + path + "/raw`"));
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(path + "/raw");
  CHECK_THROWS_WITH(dp::datasets::mnist("train-images-idx3-ubyte"), Catch::Contains("--data-path .`"));
  std::filesystem::current_path(before);
}

TEST_CASE("IDX files of other names, types and sets in place of MNIST are named with what to do") {
  const auto said = [](const std::string& name, const dp::test::Bytes& bytes) {
    const TemporaryFolder folder;
    write_file(folder, name, bytes);
    return refusal(folder);
  };
  const dp::test::Bytes images = idx_images(2), labels = idx_labels(2);
  CHECK_THAT(said("emnist-letters-train-images-idx3-ubyte.gz", gzip(images)),
             Catch::Contains("(EMNIST, which is not read)"));
  CHECK_THAT(said("qmnist-train-labels-idx2-int", labels), Catch::Contains("(QMNIST, which is not read)"));
  CHECK_THAT(said("TRAIN-IMAGES-IDX3-UBYTE.GZ", gzip(images)),
             Catch::Contains("(IDX images under another name; rename it to train-images-idx3-ubyte.gz)"));
  CHECK_THAT(said("test_labels.bin", labels),
             Catch::Contains("(IDX labels under another name; rename it to t10k-labels-idx1-ubyte)"));
  CHECK_THAT(said("raw/some", images), Catch::Contains("/raw/some (IDX images under another name)"));
  dp::test::Bytes floats = labels;
  floats[2] = 0x0d;
  CHECK_THAT(said("train-targets", floats), Catch::Contains("(IDX of float32 in 1 dimension, which is not read)"));
  CHECK_THAT(said("train/0/1.png", {}), Catch::Contains("a folder of classes, as --dataset imagefolder reads"));
  CHECK_THAT(said("mnist.npz", {}), Catch::Contains("another edition"));
  for (const char* other : {"train-images-idx3-ubyte", "notes.txt", "short"})
    CHECK(said(other, {}).find("found") == std::string::npos);
}

TEST_CASE("files of other data sets under MNIST's names are not called damaged") {
  const auto said = [](const std::string& name, const dp::test::Bytes& bytes) {
    const TemporaryFolder folder;
    write_plain(folder, "");
    write_file(folder, name, bytes);
    const std::string message = refusal(folder);
    CHECK(message.find("download the file again") == std::string::npos);
    CHECK_THAT(message, Catch::Contains("give the files of MNIST or Fashion-MNIST"));
    return message;
  };
  dp::test::Bytes labels = idx_labels(4);
  labels[9] = 26;
  CHECK_THAT(said("train-labels-idx1-ubyte", labels),
             Catch::Contains("byte 9: expected a label of 0 to 9, found 26, as in other sets of this format (EMNIST)"));
  for (const auto& [type, name] :
       {std::pair(0x09, "signed bytes"), {0x0b, "int16"}, {0x0c, "int32"}, {0x0d, "float32"}, {0x0e, "float64"}}) {
    labels[2] = static_cast<std::uint8_t>(type);
    CHECK_THAT(said("train-labels-idx1-ubyte", labels),
               Catch::Contains(std::string(", ") + name + " in 1 dimension; "));
  }
  labels[2] = 0x0c, labels[3] = 2;
  CHECK_THAT(said("train-labels-idx1-ubyte", labels), Catch::Contains("found 0x00000c02, int32 in 2 dimensions; "));
  CHECK_THAT(said("train-labels-idx1-ubyte", idx_images(4)), Catch::Contains("found 0x00000803, that of images; "));
  CHECK_THAT(said("t10k-images-idx3-ubyte", idx_labels(2)), Catch::Contains("found 0x00000801, that of labels; "));
  labels = idx_labels(4);
  std::swap(labels[0], labels[3]), std::swap(labels[1], labels[2]);
  CHECK_THAT(said("train-labels-idx1-ubyte", labels),
             Catch::Contains("unsigned bytes in 1 dimension with the bytes in reverse order; "));
}

TEST_CASE("an unreadable MNIST file is rejected by its path") {
  const TemporaryFolder folder;
  write_plain(folder, "");
  const auto path = std::filesystem::path(folder.path()) / "train-images-idx3-ubyte";
  const auto replace = [&] { std::filesystem::remove(path); };

  replace();
  std::filesystem::create_directory(path);
  CHECK_THAT(refusal(folder), Catch::Contains(path.string() + ": is a folder, not a file"));

  replace();
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  CHECK_THAT(refusal(folder), Catch::Contains("is not a regular file"));

  replace();
  std::filesystem::create_symlink(path.filename(), path);  // a link to itself
  CHECK_THAT(refusal(folder), Catch::Contains("cannot be opened"));

  replace();
  std::filesystem::create_symlink("nothing", path);
  CHECK_THAT(refusal(folder), Catch::Contains("No such file"));

  if (::geteuid() != 0) {  // root can read every file
    replace();
    write_file(folder, "train-images-idx3-ubyte", idx_images(4));
    std::filesystem::permissions(path, std::filesystem::perms::none);
    CHECK_THAT(refusal(folder), Catch::Contains("Permission denied"));
  }
}

TEST_CASE("the damaged one of four MNIST files is named by its path") {
  const TemporaryFolder folder;
  write_plain(folder, "MNIST/raw/");
  write_file(folder, "MNIST/raw/t10k-labels-idx1-ubyte", idx_labels(3));
  CHECK_THAT(refusal(folder), Catch::StartsWith(folder.path() + "/MNIST/raw/t10k-images-idx3-ubyte: byte 4: "));
}

TEST_CASE("the real MNIST has its known content") {
  const char* data = std::getenv("DP_TEST_DATA");
  if (!data || !std::filesystem::exists(std::string(data) + "/mnist"))
    DP_SKIP("DP_TEST_DATA names no folder with mnist/ in it");
  const dp::DatasetPair pair = dp::datasets::mnist(std::string(data) + "/mnist");
  REQUIRE(pair.train->size() == 60000);
  REQUIRE(pair.test->size() == 10000);
  const std::int32_t train[] = {5, 0, 4, 1, 9}, test[] = {7, 2, 1, 0, 4};
  for (int i = 0; i < 5; ++i) {
    CHECK(pair.train->label(i) == train[i]);
    CHECK(pair.test->label(i) == test[i]);
  }
  const dp::ImageCheck check = dp::check_images(*pair.train);
  CHECK(check.faults.empty());
  CHECK(check.measured.mean.front() == Approx(0.1307).epsilon(1e-3));
  CHECK(check.measured.std.front() == Approx(0.3081).epsilon(1e-3));
}
