// Replays inputs of the image fuzzer, and mutations of each with a fixed seed.
#include "data/image_files.h"
#include "dp/random.h"
#include "fuzz/image_case.h"
#include "support/catch.h"

using dp::test::ImageVerdict;
using dp::test::run_image_case;

TEST_CASE("the image fuzzer decodes good inputs") {
  for (const std::string& name : dp::test::corpus_names())
    CHECK(run_image_case(dp::test::corpus_image(name)) == ImageVerdict::decoded);
}

TEST_CASE("the image fuzzer decodes or rejects mutated inputs") {
  dp::Random random(7, dp::RandomUse::synthetic);
  int decoded = 0, refused = 0;
  for (const std::string& name : dp::test::corpus_names()) {
    const auto good = dp::test::corpus_image(name);
    for (int round = 0; round < 100; ++round) {
      auto bytes = good;
      for (std::uint32_t change = random.below(4) + 1; change > 0; --change) {
        const auto size = static_cast<std::uint32_t>(bytes.size());
        const std::size_t at = random.below(2) ? random.below(size) : random.below(std::min(size, 256u));
        switch (random.below(4)) {
          case 0: bytes.erase(bytes.begin() + static_cast<long>(at)); break;
          case 1: bytes.insert(bytes.begin() + static_cast<long>(at), static_cast<std::uint8_t>(random.next())); break;
          default: bytes[at] = static_cast<std::uint8_t>(random.next());
        }
      }
      ++(run_image_case(bytes) == ImageVerdict::decoded ? decoded : refused);
    }
  }
  CHECK(decoded > 50);
  CHECK(refused > 500);
}
