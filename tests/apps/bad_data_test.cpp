// Missing, truncated, corrupt and hostile data files.
#include <filesystem>

#include "apps/idx_files.h"
#include "apps/run_program.h"
#include "support/catch.h"

namespace {

namespace fs = std::filesystem;
using namespace dp::test;

// Replaces file `name` of a tiny MNIST. The error must contain `name` and `fragments`.
void with_file(const std::string& name, const std::string& bytes, std::vector<std::string> fragments,
               const std::string& packing = "") {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  fs::remove(temp / name);
  write_text(temp / (name + packing), bytes);
  fragments.push_back(name);
  check_bad_input({{"--dataset", "mnist", "--data-path", temp.path(), "--dry-run"}, 3, fragments, bytes.size()},
                  temp.path());
}

TEST_CASE("missing data files are reported with the remedy") {
  const TemporaryFolder temp;
  check_bad_input({{"--dataset", "mnist"}, 3, {"datasets", "--data-path"}}, temp.path());
  check_bad_input({{"--dataset", "mnist", "--data-path", "none"}, 3, {"none", "no such folder"}}, temp.path());
  check_bad_input({{"--dataset", "fashion_mnist", "--data-path", "."}, 3, {"--data-path"}}, temp.path());
  // The error has the command that downloads them and an alternative without a download.
  for (const char* classes : {"10", "100"})
    check_bad_input({{"--dataset", std::string("cifar") + classes, "--data-path", "none", "--model", "mlp"},
                     3,
                     {"none", "dp_train fetch cifar" + std::string(classes),
                      "--dataset synthetic --input 3,32,32 --classes " + std::string(classes)}},
                    temp.path());
  check_bad_input(
      {{"--dataset", "imagefolder", "--data-path", "none"}, 3, {"none/train/<class>", "--dataset synthetic"}},
      temp.path());
  check_bad_input(
      {{"--dataset", "imagelist", "--data-path", "none"}, 3, {"none/train.csv", "a path, a comma and a class"}},
      temp.path());
  for (const char* name : {kTrainImages, kTrainLabels, kTestImages, kTestLabels}) {
    const TemporaryFolder lacking;
    write_tiny_mnist(lacking.path());
    fs::remove(lacking / name);
    check_bad_input({{"--dataset", "mnist", "--data-path", "."}, 3, {name}}, lacking.path());
  }
  fs::create_directory(temp / kTrainImages);
  for (const char* name : {kTrainLabels, kTestImages, kTestLabels}) write_text(temp / name, "");
  check_bad_input({{"--dataset", "mnist", "--data-path", "."}, 3, {}}, temp.path());
}

TEST_CASE("truncated data files are rejected") {
  const std::string images = idx_images(64), labels = idx_labels(64);
  for (const std::size_t size : {0, 1, 4, 15, 16, 17}) with_file(kTrainImages, images.substr(0, size), {});
  with_file(kTrainImages, images.substr(0, images.size() - 1), {"expected 50192 bytes"});
  with_file(kTrainLabels, labels.substr(0, 8), {});
  with_file(kTestLabels, idx_labels(40).substr(0, 47), {});
  with_file(kTrainImages, images + "x", {"more follow"});
}

TEST_CASE("corrupt data files are rejected") {
  const std::string body(64 * 784, 'x');
  const auto header = [](std::uint32_t magic, std::uint32_t n, std::uint32_t rows, std::uint32_t columns) {
    return big_endian(magic) + big_endian(n) + big_endian(rows) + big_endian(columns);
  };
  with_file(kTrainImages, header(0x801, 64, 28, 28) + body, {"magic"});
  with_file(kTrainImages, header(0x803, 64, 32, 32) + body, {"28"});
  with_file(kTrainImages, header(0x803, 0, 28, 28), {"found 0"});
  with_file(kTrainImages, header(0x803, 0xffffffff, 28, 28) + body, {});
  with_file(kTrainImages, header(0x803, 63, 28, 28) + body, {});
  with_file(kTrainImages, idx_images(65), {"64", "65"});
  with_file(kTrainLabels, big_endian(0x803) + idx_labels(64).substr(4), {"magic"});
  with_file(kTrainLabels, big_endian(0x801) + big_endian(0), {"found 0"});
  with_file(kTrainLabels, big_endian(0x801) + big_endian(0x7fffffff) + std::string(64, '\1'), {});
  std::string labels = idx_labels(64);
  labels[8 + 17] = 10;
  with_file(kTrainLabels, labels, {"25", "0 to 9", "10"});
  labels[8 + 17] = static_cast<char>(255);
  with_file(kTrainLabels, labels, {"255"});
}

TEST_CASE("an HTML page in place of a data file is recognised as a failed download") {
  const std::string page = "<!DOCTYPE html><html><body>404 Not Found</body></html>";
  with_file(kTrainImages, page, {"HTML page", "download"});
}

TEST_CASE("truncated and corrupt gzip files are rejected") {
  const std::string packed = gzip(idx_images(64));
  with_file(kTrainImages, packed.substr(0, 9), {}, ".gz");
  with_file(kTrainImages, packed.substr(0, packed.size() / 2), {"end too early"}, ".gz");
  with_file(kTrainImages, packed.substr(0, packed.size() - 4), {}, ".gz");
  with_file(kTrainImages, packed + "rest", {}, ".gz");
  std::string flipped = packed;
  flipped[packed.size() / 2] = static_cast<char>(flipped[packed.size() / 2] ^ 0x55);
  with_file(kTrainImages, flipped, {}, ".gz");
  std::string checksum = packed;
  checksum[packed.size() - 6] = static_cast<char>(checksum[packed.size() - 6] ^ 1);
  with_file(kTrainImages, checksum, {}, ".gz");
  with_file(kTrainImages, "\x1f\x8b" + std::string(100, '\0'), {}, ".gz");
  // The header claims 3.4 TB; the file is small. No buffer of that size may be allocated.
  with_file(
      kTrainImages,
      gzip(big_endian(0x803) + big_endian(0xffffffff) + big_endian(28) + big_endian(28) + std::string(1 << 20, 'x')),
      {}, ".gz");
}

}  // namespace
