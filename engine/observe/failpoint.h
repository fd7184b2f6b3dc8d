// Failures on request, for tests of the engine and of what is built on it: DP_FAIL in the environment,
// read when an engine is made. docs/reference/failpoints.md describes the grammar.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/phase.h"

namespace dp::engine {

enum class FailAction : std::uint8_t { none, raise, stall, nan };

// One clause, "throw:backward:dev1:step3". A part left out matches everything.
struct Failpoint {
  FailAction action = FailAction::none;
  Phase phase = Phase::forward;
  int replica = -1;
  std::int64_t step = -1;
  int stall_ms = 1000;
};

// Clauses separated by commas. Error(usage) naming the faulty clause.
std::vector<Failpoint> parse_failpoints(std::string_view text);
std::vector<Failpoint> failpoints_from_environment();

class Failpoints {
 public:
  Failpoints() : points_(failpoints_from_environment()) {}
  // Throws or sleeps as asked; returns whether a NaN is to be planted.
  bool hit(Phase phase, int replica, std::int64_t step) const {
    return points_.empty() ? false : hit_slowly(phase, replica, step);
  }

  bool empty() const { return points_.empty(); }

 private:
  bool hit_slowly(Phase phase, int replica, std::int64_t step) const;
  std::vector<Failpoint> points_;
};

}  // namespace dp::engine
