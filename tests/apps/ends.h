// How fast signalled programs end.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <string>

#include "apps/run_program.h"
#include "support/catch.h"
#include "support/patience.h"

namespace dp::test {

// Programs should end within two seconds, and the time of each is printed. Only one that ends later than that and
// kPatience fails, because other programs may use the cores.
class Ends {
 public:
  Ends() = default;
  Ends(const Ends&) = delete;
  Ends& operator=(const Ends&) = delete;
  ~Ends() {
    CHECK_FALSE(fastest_.empty());
    for (const auto& [what, seconds] : fastest_) {
      INFO(what);
      CHECK(seconds <= kSeconds + std::chrono::duration<double>(kPatience).count());
    }
  }
  // Call this after signalling the program. `what` names what it does. Returns false if the program has not ended even
  // after kPatience.
  bool of(const Program& program, const std::string& what) {
    const auto begin = std::chrono::steady_clock::now();
    const bool ended = program.ends_within(kSeconds);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const auto [at, first] = fastest_.try_emplace(what, seconds);
    at->second = std::min(at->second, seconds);
    std::printf("%s: ended after %.2f s\n", what.c_str(), seconds);
    return ended;
  }

 private:
  static constexpr double kSeconds = 2;
  std::map<std::string, double> fastest_;
};

}  // namespace dp::test
