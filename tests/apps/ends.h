// How soon programs end that were signalled.
#pragma once

#include <algorithm>
#include <chrono>

#include "apps/run_program.h"
#include "support/catch.h"

namespace dp::test {

// Those of one test case end within two seconds: the fastest of them, since other programs may have the cores.
class Ends {
 public:
  Ends() = default;
  Ends(const Ends&) = delete;
  Ends& operator=(const Ends&) = delete;
  ~Ends() { CHECK(in_time()); }
  bool in_time() const { return fastest_ <= kSeconds; }

  // To be called when the program has been signalled. False: it has not ended, also after kPatience.
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
