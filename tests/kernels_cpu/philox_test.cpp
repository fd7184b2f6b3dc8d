#include "kernels/device/cpu/lanes.h"

#include "kernels/elementwise/cpu_dropout_plane.h"
#include "support/catch.h"

TEST_CASE("sixteen vectorised Philox streams equal sixteen calls of dp::dropout_words") {
  dp::Random random(3, dp::RandomUse::synthetic);
  for (int round = 0; round < 200; ++round) {
    const auto wide = [&] { return (std::uint64_t{random.next()} << 32) | random.next(); };
    const dp::kernels::StepInputs step{.seed = wide(), .step = wide()};
    const std::uint32_t layer = random.next();
    const auto sample = static_cast<std::int64_t>(wide() >> 1);
    std::array<std::uint32_t, dp::kernels::kPhiloxLanes> quads;
    for (auto& quad : quads) quad = random.next();
    dp::kernels::PhiloxLaneWords words;
    dp::kernels::DropoutWords(step, layer, sample).generate(quads, words);
    for (std::size_t lane = 0; lane < quads.size(); ++lane) {
      const dp::PhiloxWords expected =
          dp::dropout_words(step.seed, layer, step.step, static_cast<std::uint64_t>(sample), quads[lane]);
      for (std::size_t word = 0; word < 4; ++word) CHECK(words[word][lane] == expected[word]);
    }
  }
}
