// The order of samples and the content of batches.
#include <algorithm>
#include <memory>
#include <numeric>

#include "data/small_dataset.h"
#include "dp/error.h"
#include "support/catch.h"

using dp::Loader;
using dp::LoaderOptions;
using dp::test::BatchCopy;
using dp::test::samples_of;
using dp::test::SmallDataset;
using dp::test::whole;

namespace {

std::vector<std::int64_t> counted(std::int64_t size) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace

TEST_CASE("the order of samples is a permutation that depends on seed and epoch") {
  const auto dataset = std::make_shared<SmallDataset>(1000);
  Loader loader(dataset, {.batch_size = 64}), same(dataset, {.batch_size = 10}), other(dataset, {.seed = 43});
  const auto order = loader.order(3);
  CHECK(order != counted(1000));
  CHECK(order == same.order(3));
  CHECK(order != loader.order(4));
  CHECK(order != other.order(3));
  auto sorted = order;
  std::sort(sorted.begin(), sorted.end());
  CHECK(sorted == counted(1000));
  CHECK(samples_of(whole(loader, 3)) == order);
  CHECK(Loader(dataset, {.shuffle = false}).order(3) == counted(1000));
}

TEST_CASE("shuffles are fair: every sample comes first about equally often") {
  Loader loader(std::make_shared<SmallDataset>(8), {.batch_size = 8});
  std::vector<int> first(8), last(8);
  for (int epoch = 0; epoch < 8000; ++epoch) {
    const auto order = loader.order(epoch);
    ++first.at(static_cast<std::size_t>(order.front()));
    ++last.at(static_cast<std::size_t>(order.back()));
  }
  for (const int count : first) CHECK(std::abs(count - 1000) < 150);
  for (const int count : last) CHECK(std::abs(count - 1000) < 150);
}

TEST_CASE("a batch holds normalised images, labels and sample indices") {
  const auto dataset = std::make_shared<SmallDataset>(20, dp::Shape{2, 3, 4});
  dataset->normalization_ = {{0.25f, 0.5f}, {0.5f, 0.125f}};
  Loader loader(dataset, {.batch_size = 8});
  loader.start(0);
  const dp::Batch* batch = loader.next();
  REQUIRE(batch);
  CHECK(batch->size() == 8);
  CHECK(batch->images.shape() == dp::Shape{8, 2, 3, 4});
  CHECK(batch->labels.shape() == dp::Shape{8});
  CHECK(batch->samples.shape() == dp::Shape{8});
  const float* value = batch->images.data<float>();
  for (std::int64_t row = 0; row < 8; ++row) {
    const std::int64_t sample = batch->samples.data<std::int64_t>()[row];
    CHECK(batch->labels.data<std::int32_t>()[row] == sample % 10);
    const auto image = dataset->image(sample);
    for (std::size_t i = 0; i < image.size(); ++i) {
      const double mean = i < 12 ? 0.25 : 0.5, deviation = i < 12 ? 0.5 : 0.125;
      CHECK(*value++ == Approx((image[i] / 255.0 - mean) / deviation).margin(1e-5));
    }
  }
}

TEST_CASE("the last batch is short or dropped") {
  for (const std::int64_t size : {5, 20, 21, 23, 24, 25}) {  // with batches of 5 the remainders are 0, 0, 1, 3, 4, 0
    INFO(size << " samples");
    const auto dataset = std::make_shared<SmallDataset>(size);
    const std::int64_t whole_batches = size / 5, rest = size % 5;
    Loader loader(dataset, {.batch_size = 5});
    CHECK(loader.batches_per_epoch() == whole_batches + (rest > 0));
    std::vector<std::int64_t> sizes{5};
    if (rest > 0) sizes.push_back(rest);
    CHECK(loader.batch_sizes() == sizes);
    const auto batches = whole(loader, 0);
    CHECK(samples_of(batches) == loader.order(0));
    const auto rows = static_cast<std::size_t>(rest > 0 ? rest : 5);
    CHECK(batches.back().samples.size() == rows);
    CHECK(batches.back().images.size() == rows * 12);
    CHECK(batches.back().labels.size() == rows);

    Loader dropping(dataset, {.batch_size = 5, .drop_last = true});
    CHECK(dropping.batches_per_epoch() == whole_batches);
    CHECK(dropping.batch_sizes() == std::vector<std::int64_t>{5});
    const auto kept = whole(dropping, 0);
    CHECK(kept == std::vector<BatchCopy>(batches.begin(), batches.begin() + whole_batches));
    for (const auto& batch : kept) CHECK(batch.samples.size() == 5);
  }
}

TEST_CASE("an evaluation sees every sample exactly once, in order") {
  for (const std::int64_t size : {1, 2, 7, 8, 9, 64, 100}) {
    Loader loader(std::make_shared<SmallDataset>(size), {.batch_size = 8, .shuffle = false, .workers = 3});
    CHECK(samples_of(whole(loader, 0)) == counted(size));
    CHECK(samples_of(whole(loader, 0)) == counted(size));
  }
}

TEST_CASE("batches do not depend on workers or slots") {
  const auto dataset = std::make_shared<SmallDataset>(101, dp::Shape{3, 8, 8});
  dataset->slow = {3, 50, 77};
  const auto all = [&](int workers, int slots) {
    Loader loader(dataset, {.batch_size = 8, .augment = true, .workers = workers, .slots = slots});
    return whole(loader, 2);
  };
  const auto expected = all(1, 4);
  REQUIRE(expected.size() == 13);
  for (const int workers : {1, 2, 3, 5, 20})
    for (const int slots : {3, 4, 7, 40}) CHECK(all(workers, slots) == expected);
}

TEST_CASE("an epoch started at a batch gives the same remaining batches") {
  const auto dataset = std::make_shared<SmallDataset>(50, dp::Shape{3, 8, 8});
  Loader loader(dataset, {.batch_size = 6, .augment = true, .workers = 2});
  const auto all = whole(loader, 5);
  for (std::int64_t first = 0; first <= loader.batches_per_epoch(); ++first) {
    loader.start(5, first);
    CHECK(dp::test::rest(loader) == std::vector<BatchCopy>(all.begin() + first, all.end()));
    CHECK(loader.next() == nullptr);
  }
}

TEST_CASE("a loader works in a range-for") {
  Loader loader(std::make_shared<SmallDataset>(10), {.batch_size = 4});
  std::vector<std::int64_t> sizes;
  for (const dp::Batch& batch : loader.epoch(1)) sizes.push_back(batch.size());
  CHECK(sizes == std::vector<std::int64_t>{4, 4, 2});
}

namespace {

// 100 samples of class 0, 10 of class 3, and one of class 7.
class Uneven final : public SmallDataset {
 public:
  Uneven() : SmallDataset(111, dp::Shape{1, 4, 4}) {}
  std::int32_t label(std::int64_t index) const override { return index < 100 ? 0 : index < 110 ? 3 : 7; }
};

}  // namespace

TEST_CASE("with balanced sampling, classes occur equally often, and each sample of a class as often as the others") {
  const auto dataset = std::make_shared<Uneven>();
  Loader loader(dataset, {.batch_size = 10, .balanced = true});
  const auto order = loader.order(2);
  REQUIRE(order.size() == 111);
  std::vector<int> classes(10), samples(111);
  auto sorted = order;
  std::ranges::sort(sorted);
  CHECK(std::ranges::adjacent_find(sorted) == sorted.end());  // each occurrence has a number of its own
  for (const std::int64_t place : order)
    ++classes[static_cast<std::size_t>(dataset->label(place % 111))], ++samples[static_cast<std::size_t>(place % 111)];
  CHECK((classes[0] == 37 && classes[3] == 37 && classes[7] == 37));
  for (int i = 0; i < 111; ++i) {
    const int count = samples[static_cast<std::size_t>(i)];
    CHECK((i < 100 ? count <= 1 : i < 110 ? count == 3 || count == 4 : count == 37));
  }
  CHECK(loader.order(3) != order);
  CHECK(Loader(dataset, {.batch_size = 7, .balanced = true, .workers = 3}).order(2) == order);
  std::vector<int> first(10);  // the order is random: each class comes first about equally often
  for (int epoch = 0; epoch < 900; ++epoch)
    ++first[static_cast<std::size_t>(dataset->label(loader.order(epoch).front() % 111))];
  for (const int c : {0, 3, 7}) CHECK(std::abs(first[static_cast<std::size_t>(c)] - 300) < 75);
}

TEST_CASE("a sample that occurs again in an epoch is augmented otherwise, and has its own key and its label") {
  const auto dataset = std::make_shared<Uneven>();
  dataset->augmentation_ = {.flip = dp::Flip::random};
  dataset->augmentation_.padding = 2;
  for (const LoaderOptions& options : {LoaderOptions{.batch_size = 111, .balanced = true, .augment = true},
                                       LoaderOptions{.batch_size = 111, .repeats = 37, .augment = true}}) {
    Loader loader(dataset, options);
    loader.start(0);
    const dp::Batch* const batch = loader.next();
    REQUIRE(batch != nullptr);
    std::vector<std::vector<float>> images;
    std::int64_t repeated = options.balanced ? 110 : batch->samples.data<std::int64_t>()[0] % 111;
    for (std::int64_t row = 0; row < 111; ++row) {
      const std::int64_t sample = batch->samples.data<std::int64_t>()[row] % 111;
      CHECK(batch->labels.data<std::int32_t>()[row] == dataset->label(sample));
      if (sample != repeated) continue;
      const float* const image = batch->images.data<float>() + 16 * row;
      images.emplace_back(image, image + 16);
    }
    REQUIRE(images.size() == 37);
    std::ranges::sort(images);
    CHECK(std::unique(images.begin(), images.end()) - images.begin() > 10);
  }
}

TEST_CASE("with repeated augmentation, an epoch has each of fewer samples several times in succession") {
  const auto dataset = std::make_shared<SmallDataset>(100);
  const auto once = Loader(dataset, {.batch_size = 10}).order(1);
  const auto thrice = Loader(dataset, {.batch_size = 10, .repeats = 3}).order(1);
  REQUIRE(thrice.size() == 100);
  for (std::size_t i = 0; i < 100; ++i) CHECK(thrice[i] == once[i / 3] + 100 * static_cast<std::int64_t>(i % 3));
}

TEST_CASE("repeated or balanced samples are refused where they have no meaning") {
  const auto dataset = std::make_shared<SmallDataset>(20);
  const auto refuse = [&](const LoaderOptions& options, const std::string& text) {
    CHECK_THROWS_WITH(Loader(dataset, options), Catch::Contains(text));
  };
  refuse({.batch_size = 4, .repeats = 0}, "each sample is repeated 0 times");
  refuse({.batch_size = 4, .balanced = true, .repeats = 2}, "each sample is repeated 2 times");
  refuse({.batch_size = 4, .shuffle = false, .repeats = 2}, "repeated samples need a random order");
  refuse({.batch_size = 4, .shuffle = false, .balanced = true}, "need class numbers and a random order");
  auto set = std::make_shared<dp::ImageSet>();
  set->images = dp::Tensor(dataset->image_shape().prepended(20), dp::DType::u8);
  for (const bool augment : {false, true})
    refuse({.batch_size = 4, .repeats = 2, .augment = augment, .resident = set}, "need batches with images");
  dataset->bad_label = 7;
  CHECK_THROWS_WITH(Loader(dataset, {.batch_size = 4, .balanced = true}).order(0),
                    Catch::Contains("sample 7 has label 10"));
}
