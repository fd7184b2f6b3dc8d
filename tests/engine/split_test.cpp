#include "engine/base/split.h"

#include "dp/error.h"
#include "support/catch.h"

using dp::Split;
using dp::split_batch;
using Sizes = std::vector<std::int64_t>;

TEST_CASE("chunk equals torch.chunk") {
  CHECK(split_batch(5, 4, Split::chunk) == Sizes{2, 2, 1});
  CHECK(split_batch(6, 4, Split::chunk) == Sizes{2, 2, 2});
  CHECK(split_batch(9, 4, Split::chunk) == Sizes{3, 3, 3});
  CHECK(split_batch(10, 4, Split::chunk) == Sizes{3, 3, 3, 1});
  CHECK(split_batch(9, 8, Split::chunk) == Sizes{2, 2, 2, 2, 1});
  CHECK(split_batch(17, 8, Split::chunk) == Sizes{3, 3, 3, 3, 3, 2});
  CHECK(split_batch(36, 7, Split::chunk).size() == 6);
}

TEST_CASE("balanced sizes differ by at most one") {
  CHECK(split_batch(10, 4, Split::balanced) == Sizes{3, 3, 2, 2});
  for (std::int64_t batch = 1; batch < 40; ++batch)
    for (int replicas = 1; replicas <= 9; ++replicas) {
      const Sizes sizes = split_batch(batch, replicas, Split::balanced);
      std::int64_t sum = 0;
      for (const std::int64_t size : sizes) {
        sum += size;
        CHECK(sizes.front() - size <= 1);
      }
      CHECK(sum == batch);
      CHECK(static_cast<std::int64_t>(sizes.size()) == std::min<std::int64_t>(batch, replicas));
    }
}

TEST_CASE("fewer rows than replicas leave the last replicas idle, and an empty batch is an error") {
  CHECK(split_batch(2, 4, Split::balanced) == Sizes{1, 1});
  CHECK_THROWS_AS(split_batch(0, 4, Split::balanced), dp::Error);
  CHECK_THROWS_AS(split_batch(4, 0, Split::balanced), dp::Error);
}

TEST_CASE("shards cover the batch in order") {
  for (const Split split : {Split::balanced, Split::chunk}) {
    std::int64_t end = 0;
    for (int rank = 0; rank < 5; ++rank) {
      const auto range = dp::engine::shard_of(13, rank, 5, split);
      CHECK(range.begin == end);
      end = range.end;
    }
    CHECK(end == 13);
  }
}
