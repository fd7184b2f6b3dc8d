// The loader's ring: lifetime of batches, restarts, failures, threads.
#include "dp/loader.h"

#include <sched.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "data/refusal.h"
#include "data/small_dataset.h"
#include "data/threads.h"
#include "dp/error.h"
#include "support/catch.h"
#include "support/patience.h"

using dp::Loader;
using dp::test::BatchCopy;
using dp::test::SmallDataset;
using dp::test::whole;

namespace {

// Gives the workers time to overwrite free slots.
void let_workers_run() { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }

// Of any size and shape, without samples.
class Unusual final : public dp::Dataset {
 public:
  Unusual(std::int64_t size, const dp::Shape& shape) : size_(size), shape_(shape) {}
  std::int64_t size() const override { return size_; }
  dp::Shape image_shape() const override { return shape_; }
  std::int64_t classes() const override { return 1; }
  const dp::Normalization& normalization() const override { return normalization_; }
  std::int32_t label(std::int64_t) const override { return 0; }
  void read(std::int64_t, std::span<std::uint8_t>, dp::Random*) const override {}

 private:
  std::int64_t size_;
  dp::Shape shape_;
  dp::Normalization normalization_{{0}, {1}};
};

}  // namespace

TEST_CASE("a batch stays valid until the second next one is taken, also across epochs") {
  for (const int slots : {3, 5}) {
    Loader loader(std::make_shared<SmallDataset>(22), {.batch_size = 4, .workers = 2, .slots = slots});
    const dp::Batch *before = nullptr, *last = nullptr;
    std::optional<BatchCopy> before_copy, last_copy;
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      loader.start(epoch);
      while (const dp::Batch* batch = loader.next()) {
        let_workers_run();
        if (last) CHECK(BatchCopy(*last) == *last_copy);
        before = last;
        before_copy = last_copy;
        last = batch;
        last_copy.emplace(*batch);
      }
      loader.start(epoch + 1);  // starts to fill other slots at once
      let_workers_run();
      CHECK(BatchCopy(*before) == *before_copy);
      CHECK(BatchCopy(*last) == *last_copy);
    }
  }
}

TEST_CASE("an epoch may be abandoned at any batch") {
  const auto dataset = std::make_shared<SmallDataset>(40);
  dataset->slow = {7};
  Loader loader(dataset, {.batch_size = 4, .workers = 3});
  const auto expected = whole(loader, 1);
  for (int taken = 0; taken < 10; ++taken) {
    loader.start(0);
    for (int i = 0; i < taken; ++i) REQUIRE(loader.next());
    CHECK(whole(loader, 1) == expected);
  }
}

TEST_CASE("a worker's exception is rethrown at its batch on every call until the next start") {
  for (const int workers : {1, 2, 4}) {
    const auto dataset = std::make_shared<SmallDataset>(40);
    dataset->throwing = {13, 30};
    Loader loader(dataset, {.batch_size = 4, .shuffle = false, .workers = workers});
    for (int round = 0; round < 3; ++round) {
      loader.start(0);
      for (int batch = 0; batch < 3; ++batch) REQUIRE(loader.next()->samples.data<std::int64_t>()[0] == 4 * batch);
      CHECK_THROWS_WITH(loader.next(), "sample 13 is broken");
      CHECK_THROWS_WITH(loader.next(), "sample 13 is broken");
      loader.start(0, 4);
      for (int batch = 4; batch < 7; ++batch) REQUIRE(loader.next()->samples.data<std::int64_t>()[0] == 4 * batch);
      CHECK_THROWS_WITH(loader.next(), "sample 30 is broken");
      loader.start(0, 8);
      CHECK(dp::test::rest(loader).size() == 2);
    }
  }
}

TEST_CASE("a data set with an invalid label is rejected with the sample") {
  const auto dataset = std::make_shared<SmallDataset>(10);
  dataset->bad_label = 6;
  for (const int value : {10, -1}) {
    dataset->bad_value = value;
    Loader loader(dataset, {.batch_size = 4, .shuffle = false});
    loader.start(0, 1);
    CHECK(dp::test::data_refusal([&] { loader.next(); }) ==
          "sample 6 has label " + std::to_string(value) + ", but the dataset has 10 classes; correct the dataset");
  }
}

TEST_CASE("a loader can be destroyed at any moment") {
  const auto dataset = std::make_shared<SmallDataset>(40);
  dataset->slow = {3};
  dataset->throwing = {20};
  for (int taken = -1; taken < 5; ++taken)
    for (const int workers : {1, 3}) {
      Loader loader(dataset, {.batch_size = 4, .shuffle = false, .workers = workers});
      if (taken >= 0) loader.start(0);
      for (int i = 0; i < taken; ++i) REQUIRE(loader.next());
    }
}

TEST_CASE("a stopped wait ends without a batch, and the loader ends after the image being read") {
  constexpr std::int64_t kBatch = 50'000;  // 1,000 s
  const auto dataset = std::make_shared<SmallDataset>(2 * kBatch);
  for (std::int64_t i = 8; i < dataset->size(); ++i) dataset->slow.insert(i);
  std::atomic<bool> stop{false};
  const auto begin = std::chrono::steady_clock::now();
  {
    Loader loader(dataset, {.batch_size = kBatch, .shuffle = false, .stop = [&] { return stop.load(); }});
    loader.start(0);
    std::thread stopper([&] {
      let_workers_run();
      stop = true;
    });
    CHECK(loader.next() == nullptr);
    CHECK(loader.next() == nullptr);
    stopper.join();
  }
  CHECK(dp::test::in_time(begin, 1));
  stop = false;
  Loader ready(dataset, {.batch_size = 4, .shuffle = false, .stop = [&] { return stop.load(); }});
  ready.start(0);
  CHECK(ready.await(1));
  stop = true;
  CHECK(ready.next() != nullptr);
  bool asked = false;  // to stop, once
  Loader once(dataset, {.batch_size = kBatch, .shuffle = false, .stop = [&] { return !std::exchange(asked, true); }});
  once.start(0);
  CHECK(once.next() == nullptr);
  CHECK(once.next() == nullptr);
}

TEST_CASE("invalid loader options and starts are rejected") {
  const auto dataset = std::make_shared<SmallDataset>(10);
  const auto refuse = [&](std::shared_ptr<const dp::Dataset> data, const dp::LoaderOptions& options,
                          const std::string& text) {
    INFO(text);
    try {
      Loader loader(std::move(data), options);
      FAIL("accepted");
    } catch (const dp::Error& error) {
      CHECK(error.code() == dp::ErrorCode::usage);
      CHECK(error.what() == text);
    }
  };
  refuse(nullptr, {}, "an empty dataset cannot be loaded; give one with samples");
  refuse(std::make_shared<SmallDataset>(0), {}, "an empty dataset cannot be loaded; give one with samples");
  refuse(dataset, {.batch_size = 0}, "the batch size is 0; give 1 or more");
  refuse(dataset, {.batch_size = -1}, "the batch size is -1; give 1 or more");
  refuse(dataset, {.batch_size = 11, .drop_last = true},
         "a batch of 11 is larger than the data set of 10 samples, and incomplete batches are dropped; use a smaller "
         "--batch-size, or remove --drop-last");
  refuse(dataset, {.workers = 0}, "the number of loader threads is 0; give 1 or more");
  refuse(dataset, {.slots = 2}, "the number of loader slots is 2; give 3 or more");
  refuse(dataset, {.rank = 0, .ranks = 0}, "rank 0 of 0 does not exist; ranks count from 0");
  refuse(dataset, {.rank = -1, .ranks = 2}, "rank -1 of 2 does not exist; ranks count from 0");
  refuse(dataset, {.rank = 2, .ranks = 2}, "rank 2 of 2 does not exist; ranks count from 0");
  refuse(dataset, {.batch_size = 2, .ranks = 3},
         "a global batch of 2 is less than the 3 ranks; give at least one sample per rank");
  refuse(std::make_shared<Unusual>(std::int64_t{1} << 32, dp::Shape{1, 1, 1}), {},
         "a dataset of 4294967296 samples is too large; the limit is 4294967295");
  refuse(std::make_shared<Unusual>(2, dp::Shape{3, 4}), {},
         "a loader requires images of shape (C,H,W), but the data set's are (3, 4)");
  const auto unnormalised = std::make_shared<SmallDataset>(10, dp::Shape{3, 2, 2});
  const std::string normalisation =
      "a dataset of 3 channels needs as many means and positive deviations to be normalised";
  unnormalised->normalization_.std = {1, 1};
  refuse(unnormalised, {}, normalisation);
  unnormalised->normalization_.std = {1, 0, 1};
  refuse(unnormalised, {}, normalisation);
  unnormalised->normalization_ = {{0, 0}, {1, 1, 1}};
  refuse(unnormalised, {}, normalisation);
  const auto shrunk = std::make_shared<SmallDataset>(10);
  shrunk->augmentation_.padding = -1;
  refuse(shrunk, {}, "--crop-padding is -1; the augmentation needs a value from 0 to 4096");
  CHECK_NOTHROW(Loader(dataset, {.batch_size = 3, .slots = 3, .rank = 2, .ranks = 3}));

  Loader loader(dataset, {.batch_size = 4});
  CHECK_THROWS_WITH(loader.next(), "no epoch was started; call start() before next()");
  for (const auto& [epoch, first] : {std::pair(0, 4), {0, -1}, {-1, 0}})
    CHECK_THROWS_WITH(loader.start(epoch, first), "epoch " + std::to_string(epoch) + " cannot start at batch " +
                                                      std::to_string(first) + "; an epoch has the batches 0 to 2");
  CHECK(whole(loader, 0).size() == 3);
  CHECK(&loader.dataset() == dataset.get());
}

namespace {

// Records the smallest number of usable cores among the threads that read it.
class CoreCounting final : public dp::Dataset {
 public:
  std::int64_t size() const override { return 64; }
  dp::Shape image_shape() const override { return dp::Shape{1, 1, 1}; }
  std::int64_t classes() const override { return 1; }
  const dp::Normalization& normalization() const override { return normalization_; }
  void read(std::int64_t, std::span<std::uint8_t> out, dp::Random*) const override {
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    const std::scoped_lock lock(mutex_);
    fewest = std::min(fewest, CPU_COUNT(&set));
    out[0] = 0;
  }
  std::int32_t label(std::int64_t) const override { return 0; }

  mutable int fewest = CPU_SETSIZE;

 private:
  mutable std::mutex mutex_;
  dp::Normalization normalization_{{0.5f}, {0.5f}};
};

}  // namespace

TEST_CASE("loader threads do not inherit the affinity of the thread that created them") {
  cpu_set_t mine, one;
  REQUIRE(sched_getaffinity(0, sizeof mine, &mine) == 0);
  if (CPU_COUNT(&mine) < 2) DP_SKIP("this process may use one core only");
  int core = 0;
  while (!CPU_ISSET(core, &mine)) ++core;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
  const auto dataset = std::make_shared<CoreCounting>();
  {
    Loader loader(dataset, {.batch_size = 4, .workers = 2});
    whole(loader, 0);
  }
  REQUIRE(sched_setaffinity(0, sizeof mine, &mine) == 0);
  CHECK(dataset->fewest >= CPU_COUNT(&mine));
}

namespace {

// Limits the growth of the address space to a number of bytes during its lifetime.
class AddressLimit {
 public:
  explicit AddressLimit(std::size_t more) {
    ::getrlimit(RLIMIT_AS, &before_);
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit limit = before_;
    limit.rlim_cur = pages * 4096 + more;
    ::setrlimit(RLIMIT_AS, &limit);
  }
  ~AddressLimit() { ::setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_{};
};

}  // namespace

TEST_CASE("loader threads that cannot be started are an error with their number and the remedy") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  DP_SKIP("the sanitizers map memory for each thread");
#endif
  const auto dataset = std::make_shared<SmallDataset>(22);
  std::string text;
  {
    const AddressLimit limit(std::size_t{64} << 20);
    try {
      Loader loader(dataset, {.batch_size = 4, .workers = 200});
    } catch (const dp::Error& error) {
      text = error.what();
      CHECK(error.code() == dp::ErrorCode::device);
    }
  }
  INFO(text);
  CHECK(text.find("of 200 loader threads could be started") != std::string::npos);
  CHECK(text.find("ulimit -u") != std::string::npos);
  Loader loader(dataset, {.batch_size = 4, .workers = 2});
  CHECK(whole(loader, 0).size() == 6);
}

TEST_CASE("work for threads that cannot be started is done by the caller") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  DP_SKIP("the sanitizers map memory for each thread");
#endif
  std::vector<std::atomic<int>> done(500);
  {
    const AddressLimit limit(std::size_t{64} << 20);
    dp::for_ranges(500, 200, [&](std::int64_t begin, std::int64_t end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));  // keeps all threads alive at the same time
      for (; begin < end; ++begin) ++done[static_cast<std::size_t>(begin)];
    });
  }
  for (const auto& count : done) CHECK(count == 1);
}

TEST_CASE("ranges cover all elements, their sizes differ by at most one, and the lowest range's error is rethrown") {
  using Range = std::pair<std::int64_t, std::int64_t>;
  const auto ranges = [](std::int64_t count, int threads) {
    std::mutex mutex;
    std::set<Range> all;
    dp::for_ranges(count, threads, [&](std::int64_t begin, std::int64_t end) {
      const std::scoped_lock lock(mutex);
      all.emplace(begin, end);
    });
    return all;
  };
  CHECK(ranges(10, 4) == std::set<Range>{{0, 3}, {3, 6}, {6, 8}, {8, 10}});
  CHECK(ranges(8, 4) == std::set<Range>{{0, 2}, {2, 4}, {4, 6}, {6, 8}});
  CHECK(ranges(3, 5) == std::set<Range>{{0, 1}, {1, 2}, {2, 3}});
  CHECK(ranges(5, 1) == std::set<Range>{{0, 5}});
  CHECK(ranges(0, 3) == std::set<Range>{{0, 0}});
  CHECK(ranges(1000, 0).size() == static_cast<std::size_t>(std::min(dp::available_cores().cores, 1000)));
  CHECK_THROWS_WITH(dp::for_ranges(9, 3,
                                   [](std::int64_t begin, std::int64_t) {
                                     if (begin > 0) throw std::runtime_error("from " + std::to_string(begin));
                                   }),
                    "from 3");
}
