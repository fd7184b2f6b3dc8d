#include <vector>

#include "data/memory_dataset.h"
#include "data/threads.h"
#include "dp/dataset.h"
#include "dp/error.h"
#include "dp/random.h"

namespace dp {
namespace {

std::shared_ptr<const Dataset> make_part(const Shape& image, std::int64_t classes, std::int64_t count,
                                         std::uint64_t seed, std::uint64_t part) {
  const auto bytes = static_cast<std::size_t>(image.numel());
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(image.prepended(count).numel()));
  std::vector<std::int32_t> labels(static_cast<std::size_t>(count));
  for_ranges(count, 0, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      Random random(seed, RandomUse::synthetic, i, part);
      labels[i] = static_cast<std::int32_t>(random.below(static_cast<std::uint32_t>(classes)));
      std::uint32_t word = 0;
      for (std::size_t byte = 0; byte < bytes; ++byte) {
        word = byte % 4 == 0 ? random.next() : word >> 8;
        pixels[i * bytes + byte] = static_cast<std::uint8_t>(word);
      }
    }
  });
  const auto channels = static_cast<std::size_t>(image[0]);
  const Normalization uniform_bytes{std::vector<float>(channels, 0.5f), std::vector<float>(channels, 0.2887f)};
  return std::make_shared<MemoryDataset>(image, classes, uniform_bytes, std::move(pixels), std::move(labels));
}

}  // namespace

namespace datasets {

DatasetPair synthetic(const Shape& image, std::int64_t classes, std::int64_t train, std::int64_t test,
                      std::uint64_t seed) {
  if (image.rank() != 3 || image.numel() == 0)
    throw Error(ErrorCode::usage, "synthetic: images of shape " + to_string(image) +
                                      " can not be made; give channels, rows and columns, each at least 1");
  if (classes < 1 || classes > INT32_MAX || train < 0 || test < 0)
    throw Error(ErrorCode::usage, "synthetic: " + std::to_string(classes) + " classes, " + std::to_string(train) +
                                      " and " + std::to_string(test) +
                                      " images can not be made; give 1 to 2147483647 classes and counts of 0 or more");
  return {make_part(image, classes, train, seed, 0), make_part(image, classes, test, seed, 1)};
}

}  // namespace datasets
}  // namespace dp
