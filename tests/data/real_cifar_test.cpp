// The real CIFAR-10: the published files, or an archive of JPEGs made from them.
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "data/datasets/image_folder.h"
#include "data/formats/rgb_image.h"
#include "dp/dataset.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

namespace dp::test {
namespace {

namespace fs = std::filesystem;

// Appends the label and the three planes of each image from index `first` on, in CIFAR's binary format.
void write_records(const fs::path& file, const fs::path& folder, const ImageList& list, std::int64_t first) {
  std::ofstream out(file, std::ios::binary);
  RgbImage image;
  for (std::int64_t i = first; i < first + 10000; ++i) {
    const std::string path = list.path(folder.string(), i), jpeg = read_text(path);
    decode_image(path, {reinterpret_cast<const std::uint8_t*>(jpeg.data()), jpeg.size()}, image);
    REQUIRE((image.width == 32 && image.height == 32));
    out.put(static_cast<char>(list.labels[static_cast<std::size_t>(i)]));
    for (std::size_t plane = 0; plane < 3; ++plane)
      for (std::size_t at = plane; at < 3 * 1024; at += 3) out.put(static_cast<char>(image.pixels[at]));
  }
  REQUIRE(out.flush());
}

// Makes the binary files from <archive>'s train/<class>/<image> and test/<class>/<image>.
void make_cifar(const fs::path& archive, const TemporaryFolder& folder) {
  REQUIRE(std::system(("tar -xJf '" + archive.string() + "' -C '" + folder.path() + "'").c_str()) == 0);
  const fs::path train = folder / "train", test = folder / "test";
  const ImageList training = list_images(train.string(), nullptr);
  REQUIRE(training.labels.size() == 50000);
  for (int k = 0; k < 5; ++k)
    write_records(folder / ("data_batch_" + std::to_string(k + 1) + ".bin"), train, training, 10000 * k);
  write_records(folder / "test_batch.bin", test, list_images(test.string(), &training.classes), 0);
}

}  // namespace

TEST_CASE("the real CIFAR-10 has its known content") {
  const char* data = std::getenv("DP_TEST_DATA");
  if (!data || !fs::exists(fs::path(data) / "cifar10")) DP_SKIP("DP_TEST_DATA names no folder with cifar10/ in it");
  std::string folder = (fs::path(data) / "cifar10").string();
  const TemporaryFolder made;
  if (const fs::path archive = folder + "/cifar10-jpeg.tar.xz"; fs::exists(archive)) {
    make_cifar(archive, made);
    folder = made.path();
  }
  const DatasetPair pair = datasets::cifar10(folder);
  REQUIRE(pair.train->size() == 50000);
  REQUIRE(pair.test->size() == 10000);
  std::vector<int> labels(10);
  double sums[3] = {}, squares[3] = {};
  for (std::int64_t i = 0; i < 50000; ++i) {
    ++labels[static_cast<std::size_t>(pair.train->label(i))];
    const auto image = pair.train->image(i);
    for (std::size_t k = 0; k < image.size(); ++k) {
      sums[k / 1024] += image[k];
      squares[k / 1024] += double{1} * image[k] * image[k];
    }
  }
  for (const int count : labels) CHECK(count == 5000);
  for (std::size_t c = 0; c < 3; ++c) {
    const double mean = sums[c] / (50000.0 * 1024), deviation = std::sqrt(squares[c] / (50000.0 * 1024) - mean * mean);
    CHECK(mean / 255 == Approx(pair.train->normalization().mean[c]).epsilon(3e-3));
    CHECK(deviation / 255 == Approx(pair.train->normalization().std[c]).epsilon(2e-2));
  }
}

}  // namespace dp::test
