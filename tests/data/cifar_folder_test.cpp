#include "data/cifar_bytes.h"
#include "data/refusal.h"
#include "dp/error.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

using dp::test::data_refusal;
using dp::test::TemporaryFolder;

namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kTenBytes = 30730000, kHundredTrainBytes = 153700000, kHundredTestBytes = 30740000;

// A sparse file of the official size that starts with the given bytes.
void write_sparse(const TemporaryFolder& folder, const std::string& name, std::uintmax_t size,
                  const std::vector<std::uint8_t>& begin = {}) {
  folder.write(name, begin);
  fs::resize_file(folder / name, size);
}

void write_ten(const TemporaryFolder& folder, const std::string& prefix) {
  for (int i = 1; i <= 5; ++i)
    write_sparse(folder, prefix + "data_batch_" + std::to_string(i) + ".bin", kTenBytes,
                 dp::test::cifar_records(2, 1, i));
  write_sparse(folder, prefix + "test_batch.bin", kTenBytes, dp::test::cifar_records(1, 1, 9));
}

}  // namespace

TEST_CASE("CIFAR-10 of the official sizes is found in the folder and in the archive's folder") {
  for (const char* prefix : {"", "cifar-10-batches-bin/"}) {
    const TemporaryFolder folder;
    write_ten(folder, prefix);
    const dp::DatasetPair pair = dp::datasets::find("cifar10").open(folder.path(), 42);
    REQUIRE(pair.train->size() == 50000);
    REQUIRE(pair.test->size() == 10000);
    CHECK(pair.train->image_shape() == dp::datasets::find("cifar10").image);
    CHECK(pair.train->classes() == dp::datasets::find("cifar10").classes);
    for (int i = 0; i < 5; ++i) CHECK(pair.train->label(10000 * i + 1) == i + 2);
    CHECK(pair.test->label(0) == 9);
    CHECK(pair.train->normalization().mean == std::vector<float>{0.4914f, 0.4822f, 0.4465f});
    CHECK(pair.train->normalization().std == std::vector<float>{0.2470f, 0.2435f, 0.2616f});
  }
}

TEST_CASE("CIFAR-100 of the official sizes is found with its fine labels") {
  const TemporaryFolder folder;
  write_sparse(folder, "cifar-100-binary/train.bin", kHundredTrainBytes, dp::test::cifar_records(2, 2, 60));
  write_sparse(folder, "cifar-100-binary/test.bin", kHundredTestBytes, dp::test::cifar_records(2, 2, 98));
  const dp::DatasetPair pair = dp::datasets::find("cifar100").open(folder.path(), 42);
  REQUIRE(pair.train->size() == 50000);
  REQUIRE(pair.test->size() == 10000);
  CHECK(pair.train->image_shape() == dp::datasets::find("cifar100").image);
  CHECK(pair.train->classes() == 100);
  CHECK(dp::datasets::find("cifar100").classes == 100);
  CHECK(pair.train->label(1) == 61);
  CHECK(pair.test->label(1) == 99);
  CHECK(pair.train->normalization().mean == std::vector<float>{0.50707f, 0.48655f, 0.44092f});
  CHECK(pair.train->normalization().std == std::vector<float>{0.26733f, 0.25644f, 0.27615f});
}

TEST_CASE("missing CIFAR files are named with the command that downloads them") {
  const TemporaryFolder folder;
  const std::string path = folder.path();
  const std::string none = data_refusal([&] { dp::datasets::cifar10(path); });
  for (const std::string& part : {path + " or " + path + "/cifar-10-batches-bin",
                                  "`dp_train fetch cifar10 --data-path " + path + "`", std::string("set --data-path")})
    CHECK_THAT(none, Catch::Contains(part));
  CHECK_THAT(data_refusal([&] { dp::datasets::cifar100(path); }),
             Catch::Contains("dp_train fetch cifar100 --data-path " + path));
  CHECK_THAT(data_refusal([&] { dp::datasets::cifar10(path + "/nowhere"); }), Catch::Contains("no such folder"));
  write_ten(folder, "");
  fs::remove(folder / "data_batch_4.bin");
  CHECK_THAT(data_refusal([&] { dp::datasets::cifar10(path); }), Catch::Contains(path + " lacks data_batch_4.bin"));
  write_ten(folder, "cifar-10-batches-bin/");
  CHECK(dp::datasets::cifar10(path).train->size() == 50000);
}

TEST_CASE("a CIFAR path with another size or that is not a regular file is rejected by name") {
  const TemporaryFolder folder;
  const std::string path = folder.path();
  write_ten(folder, "");
  const auto said = [&] { return data_refusal([&] { dp::datasets::cifar10(path); }); };
  fs::resize_file(folder / "data_batch_1.bin", kTenBytes - 1);
  CHECK_THAT(said(), Catch::StartsWith(path + "/data_batch_1.bin: byte 30729999: expected 30730000 bytes"));
  fs::resize_file(folder / "data_batch_1.bin", kTenBytes + 1);
  CHECK_THAT(said(), Catch::Contains("more follow"));
  fs::remove(folder / "data_batch_1.bin");
  fs::create_directory(folder / "data_batch_1.bin");
  CHECK_THAT(said(), Catch::StartsWith(path + "/data_batch_1.bin: is a folder"));
}

TEST_CASE("other editions, archives and sets in place of CIFAR are named with what to do") {
  const auto said = [](const TemporaryFolder& folder, bool hundred = false) {
    const std::string path = folder.path();
    return data_refusal([&] { hundred ? dp::datasets::cifar100(path) : dp::datasets::cifar10(path); });
  };
  const auto with = [](const std::string& name) {
    auto folder = std::make_unique<TemporaryFolder>();
    folder->write(name, {});
    return folder;
  };
  CHECK_THAT(said(*with("cifar-10-batches-py/data_batch_1")),
             Catch::Contains("; found ") &&
                 Catch::Contains("/cifar-10-batches-py (the Python edition; the binary one is read); download"));
  CHECK_THAT(said(*with("cifar-100-python/train"), true), Catch::Contains("the Python edition"));
  CHECK_THAT(said(*with("batches.meta")), Catch::Contains("a file of the Python edition"));
  CHECK_THAT(said(*with("cifar-10-batches-mat/readme.html")), Catch::Contains("the MATLAB edition"));
  const auto packed = with("cifar-10-binary.tar.gz");
  const std::string archive = packed->path() + "/cifar-10-binary.tar.gz", place = packed->path();
  const std::string unpack = "; " + archive + " is not unpacked: run `tar -xf " + archive + " -C " + place +
                             "`, and set --data-path to that folder";
  CHECK_THAT(said(*packed), Catch::EndsWith(unpack));
  CHECK(data_refusal([&] { dp::datasets::cifar10(archive); }) ==
        "cifar10: " + archive + " is a file, not a folder" + unpack);
  CHECK_THAT(said(*packed, true), Catch::Contains("the archive of CIFAR-10: --dataset cifar10"));
  CHECK_THAT(said(*with("CIFAR-100-binary.tgz"), true), Catch::Contains("run `tar -xf "));
  CHECK_THAT(said(*with("cifar-10-python.tar.gz")), Catch::Contains("an archive of the Python edition"));
  CHECK_THAT(said(*with("cifar-100-binary/train.bin")), Catch::Contains("CIFAR-100: --dataset cifar100"));
  CHECK_THAT(said(*with("train/cat/1.png")), Catch::Contains("a folder of classes, as --dataset imagefolder reads"));
  CHECK(said(*with("notes.txt")).find("found") == std::string::npos);
  const TemporaryFolder file;
  file.write("archive", {});
  CHECK_THAT(
      data_refusal([&] { dp::datasets::cifar10(file / "archive"); }),
      Catch::Contains("archive is a file, not a folder; download them with `dp_train fetch cifar10 --data-path " +
                      file.path() + "`"));
}
