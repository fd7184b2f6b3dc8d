#include "dp/random.h"

#include <vector>

#include "support/catch.h"

TEST_CASE("philox4x32-10 gives the published known answers") {
  // Known answers for philox4x32-10 from Random123's kat_vectors.
  CHECK(dp::philox4x32({0, 0, 0, 0}, 0, 0) == dp::PhiloxWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(dp::philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffff, 0xffffffff) ==
        dp::PhiloxWords{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(dp::philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0) ==
        dp::PhiloxWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("Random::below is uniform and stays below its bound") {
  dp::Random random(1, dp::RandomUse::shuffle, 7);
  std::vector<int> counts(10);
  for (int i = 0; i < 100000; ++i) ++counts.at(random.below(10));
  for (const int count : counts) CHECK(std::abs(count - 10000) < 500);
}

TEST_CASE("streams of different keys differ, and streams of equal keys agree") {
  dp::Random a(1, dp::RandomUse::init, 0), b(1, dp::RandomUse::init, 0), c(1, dp::RandomUse::init, 1),
      d(2, dp::RandomUse::init, 0), e(1, dp::RandomUse::augment, 0);
  const auto first = a.next();
  CHECK(b.next() == first);
  CHECK(c.next() != first);
  CHECK(d.next() != first);
  CHECK(e.next() != first);
}
