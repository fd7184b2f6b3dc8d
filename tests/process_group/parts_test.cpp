// A rank's loader yields its part of the global batches of a single-process run.
#include <algorithm>
#include <set>

#include "data/small_dataset.h"
#include "dp/error.h"
#include "dp/loader.h"
#include "support/catch.h"

using namespace dp;
using namespace dp::test;

namespace {

std::vector<std::vector<std::int64_t>> samples_of(const std::shared_ptr<const Dataset>& data, LoaderOptions options,
                                                  std::int64_t first_batch = 0) {
  Loader loader(data, options);
  loader.start(3, first_batch);
  std::vector<std::vector<std::int64_t>> batches;
  while (const Batch* batch = loader.next()) {
    const auto samples = batch->samples.span<std::int64_t>();
    batches.emplace_back(samples.begin(), samples.end());
    if (options.ranks == 1) CHECK(batch->global_size() == batch->size());
  }
  return batches;
}

}  // namespace

TEST_CASE("ranks: their parts make up the global batches, and an evaluation sees every sample once") {
  for (const std::int64_t size : {24, 25, 29, 7})
    for (const int ranks : {2, 3, 4}) {
      const auto data = std::make_shared<SmallDataset>(size);
      LoaderOptions options{.batch_size = 12, .shuffle = true};
      const auto whole = samples_of(data, options);
      std::vector<std::vector<std::int64_t>> joined(whole.size());
      options.ranks = ranks;
      for (options.rank = 0; options.rank < ranks; ++options.rank) {
        const auto parts = samples_of(data, options);
        REQUIRE(parts.size() == whole.size());
        for (std::size_t batch = 0; batch < whole.size(); ++batch)
          for (std::size_t i = 0; i < parts[batch].size(); ++i) {
            const std::size_t at = static_cast<std::size_t>(options.rank) + i * static_cast<std::size_t>(ranks);
            CHECK(parts[batch][i] == whole[batch].at(at));
            joined[batch].push_back(parts[batch][i]);
          }
      }
      for (std::size_t batch = 0; batch < whole.size(); ++batch) {
        std::multiset<std::int64_t> all(joined[batch].begin(), joined[batch].end());
        CHECK(all == std::multiset<std::int64_t>(whole[batch].begin(), whole[batch].end()));
      }
    }
}

TEST_CASE("ranks: a short last training batch is padded from the epoch's beginning, as in DistributedSampler") {
  const std::int64_t size = 29;
  const int ranks = 4;
  const auto data = std::make_shared<SmallDataset>(size);
  LoaderOptions options{.batch_size = 12, .shuffle = true};
  options.pad = true;
  const std::vector<std::int64_t> order = Loader(data, options).order(3);
  options.ranks = ranks;
  for (options.rank = 0; options.rank < ranks; ++options.rank) {
    std::vector<std::int64_t> seen, expected;
    for (const auto& batch : samples_of(data, options)) seen.insert(seen.end(), batch.begin(), batch.end());
    // indices += indices[:total - len]; indices[rank::ranks]
    for (std::int64_t i = options.rank; i < 32; i += ranks)
      expected.push_back(order[static_cast<std::size_t>(i % size)]);
    CHECK(seen == expected);
    CHECK(Loader(data, options).batch_sizes() == std::vector<std::int64_t>{3, 2});
  }
}

TEST_CASE("ranks: a run resumed inside an epoch continues with the same parts") {
  const auto data = std::make_shared<SmallDataset>(40);
  LoaderOptions options{.batch_size = 8, .shuffle = true};
  options.rank = 1;
  options.ranks = 3;
  const auto whole = samples_of(data, options), rest = samples_of(data, options, 2);
  CHECK(std::equal(rest.begin(), rest.end(), whole.begin() + 2, whole.end()));
}

TEST_CASE("ranks: more ranks than samples in a batch are rejected") {
  LoaderOptions options{.batch_size = 2};
  options.ranks = 3;
  CHECK_THROWS_AS(Loader(std::make_shared<SmallDataset>(10), options), Error);
  options.ranks = 2;
  options.rank = 2;
  CHECK_THROWS_AS(Loader(std::make_shared<SmallDataset>(10), options), Error);
}
