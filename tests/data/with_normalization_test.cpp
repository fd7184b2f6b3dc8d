#include <memory>

#include "data/small_dataset.h"
#include "dp/error.h"
#include "support/catch.h"

using namespace dp;
using dp::test::SmallDataset;

TEST_CASE("images with another normalisation are (x / 255 - mean) / deviation, and otherwise the same") {
  const auto dataset = std::make_shared<SmallDataset>(9, Shape{2, 3, 3});
  const DatasetPair pair = with_normalization({dataset, dataset}, {{0.1f, 0.2f}, {0.3f, 0.4f}});
  Loader loader(pair.train, {.batch_size = 9, .shuffle = false});
  loader.start(0);
  const Batch* const batch = loader.next();
  REQUIRE(batch != nullptr);
  for (std::int64_t i = 0; i < batch->images.numel(); ++i) {
    const bool second = i / 9 % 2 == 1;
    const double byte = dataset->image(i / 18)[static_cast<std::size_t>(i % 18)];
    const double wanted = (byte / 255 - (second ? 0.2 : 0.1)) / (second ? 0.4 : 0.3);
    CHECK(static_cast<double>(batch->images.data<float>()[i]) == Approx(wanted).epsilon(1e-5).margin(1e-6));
  }
  CHECK(pair.test->label(3) == dataset->label(3));
  CHECK(pair.test->classes() == dataset->classes());
}

TEST_CASE("a normalisation that does not fit the channels is refused") {
  const auto dataset = std::make_shared<SmallDataset>(9, Shape{2, 3, 3});
  for (const Normalization& wrong : {Normalization{{0.1f}, {0.3f, 0.4f}}, Normalization{{0.1f, 0.2f}, {0.3f}},
                                     Normalization{{0.1f, 0.2f}, {0.3f, 0.0f}}, Normalization{}})
    CHECK_THROWS_WITH(with_normalization({dataset, dataset}, wrong),
                      Catch::StartsWith("images of 2 channels need as many means and positive deviations"));
}
