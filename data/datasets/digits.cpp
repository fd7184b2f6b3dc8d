#include "data/datasets/digits.h"

#include <vector>

#include "data/datasets/digit_pen.h"
#include "data/memory_dataset.h"
#include "data/threads.h"
#include "dp/error.h"
#include "dp/random.h"

namespace dp {

std::shared_ptr<const Dataset> draw_digits(DigitsPart part, std::int64_t count, std::uint64_t seed, int threads) {
  if (count < 0)
    throw Error(ErrorCode::usage, "digits: the number of images is " + std::to_string(count) + "; give 0 or more");
  const Shape image{1, kDigitSide, kDigitSide};
  const auto bytes = static_cast<std::size_t>(image.numel());
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(image.prepended(count).numel()));
  std::vector<std::int32_t> labels(static_cast<std::size_t>(count));
  for_ranges(count, threads, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      Random random(seed, RandomUse::digits, i, static_cast<std::uint64_t>(part));
      labels[i] = draw_digit(random, std::span(pixels).subspan(i * bytes, bytes));
    }
  });
  return std::make_shared<MemoryDataset>(image, 10, Normalization{{0.1394f}, {0.2845f}}, std::move(pixels),
                                         std::move(labels));
}

namespace datasets {

DatasetPair digits(std::int64_t train, std::int64_t test, std::uint64_t seed) {
  return {draw_digits(DigitsPart::train, train, seed), draw_digits(DigitsPart::test, test, seed)};
}

}  // namespace datasets
}  // namespace dp
