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
