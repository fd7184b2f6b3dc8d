// Stalled programs, repeated in every phase.
#include "observe/stalled_program.h"
#include "support/catch.h"
#include "support/patience.h"

using namespace dp::test;

TEST_CASE("20 stalls in both engines end with exit code 6 within 2 to 4 s and name the stalled replica") {
  const char* const phases[] = {"scatter", "forward", "backward", "reduce", "update"};
  for (int i = 0; i < 20; ++i) {
    const bool ddp = i % 4 == 3;
    const int device = i % 2;
    const std::string expected =
        (ddp ? "rank " : "replica ") + std::to_string(device) + " (cpu) made no progress for 2 s";
    Stalled stalled;
    // A rank that gets no core for two seconds at another moment ends the run, too.
    for (int tries = 0; tries < (ddp ? 3 : 1) && stalled.outcome.err.find(expected) == std::string::npos; ++tries)
      stalled = run_stalled(ddp ? std::vector<std::string>{"--engine", "ddp"} : std::vector<std::string>{}, device,
                            phases[i % 5]);
    INFO(i << ": " << stalled.seconds << " s, " << stalled.outcome.err);
    CHECK(stalled.outcome.code == 6);
    CHECK(stalled.whole > 1.9);
    CHECK(stalled.seconds < kLongestEnd + kPatience.count());
    CHECK_THAT(stalled.outcome.err, Catch::Contains(expected));
  }
}
