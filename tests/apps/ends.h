// How fast signalled programs end.
#pragma once

#include <algorithm>
#include <chrono>

#include "apps/run_program.h"
#include "support/catch.h"

namespace dp::test {

// At least one program of a test case must end within two seconds. The fastest counts, because other programs may use
// the cores.
class Ends {
 public:
  Ends() = default;
  Ends(const Ends&) = delete;
  Ends& operator=(const Ends&) = delete;
  ~Ends() { CHECK(in_time()); }
  bool in_time() const { return fastest_ <= kSeconds; }

  // Call this after signalling the program. Returns false if the program has not ended even after kPatience.
  bool of(const Program& program) {
    const auto begin = std::chrono::steady_clock::now();
    const bool ended = program.ends_within(kSeconds);
    fastest_ = std::min(fastest_, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    return ended;
  }

 private:
  static constexpr double kSeconds = 2;
  double fastest_ = 1e9;
};

}  // namespace dp::test
