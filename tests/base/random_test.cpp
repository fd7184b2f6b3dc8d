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

TEST_CASE("the numbers of a random stream depend on every word of its key") {
  dp::Random random(0x123456789abcdef0, dp::RandomUse::shuffle, 0xfedcba9876543210, 0x0f1e2d3c4b5a6978);
  for (const std::uint32_t word : {0x2dc7e233u, 0xf60edc4eu, 0x118f73a3u, 0xaa82e280u, 0x7342492cu, 0xf9b76543u})
    CHECK(random.next() == word);
}

// Computed by the formulas in Python.
TEST_CASE("bounded and normal random numbers equal those of the published algorithms") {
  dp::Random large(1, dp::RandomUse::shuffle, 7);  // of ten products two are rejected
  for (const std::uint32_t number :
       {1647211360u, 664610240u, 526487926u, 1454204741u, 1147481909u, 1695730681u, 1812621296u, 1647598441u})
    CHECK(large.below(0xC0000000u) == number);
  dp::Random half(1, dp::RandomUse::shuffle, 7), words(1, dp::RandomUse::shuffle, 7);
  for (int i = 0; i < 20; ++i) CHECK(half.below(0x80000000u) == words.next() >> 1);  // a power of two rejects nothing
  dp::Random small(1, dp::RandomUse::init, 7);
  for (const std::uint32_t number : {1u, 2u, 2u, 3u, 3u, 5u, 4u, 5u}) CHECK(small.below(10) == number);
  dp::Random normal(1, dp::RandomUse::shuffle, 7);
  for (const double number : {-0.8993450999259949, 0.9193233251571655, 1.098801851272583, -1.417039155960083})
    CHECK(normal.normal() == Approx(number).epsilon(1e-6));
}
