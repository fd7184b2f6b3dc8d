// Injected failures for tests. DP_FAIL in the environment sets them; it is read when an engine is constructed.
// docs/reference/failpoints.md describes the grammar.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/observe/progress.h"

namespace dp::engine {

enum class FailAction : std::uint8_t { none, raise, stall, nan, signal, call };

// One clause, "throw:backward:dev1:step3" or "fail:collective:2:dev1". An omitted part matches everything.
struct Failpoint {
  FailAction action = FailAction::none;
  Phase phase = Phase::forward;
  int replica = -1;
  int stage = -1, micro_batch = -1;  // micro_batch: with a pipeline, an item
  std::int64_t step = -1;
  int stall_ms = 1000;
  int signal = 0;  // with FailAction::signal
  // With FailAction::call: the number of the failing call of this kind, counted from 1. The engine counts collectives;
  // tests count the others.
  std::string_view kind;
  std::int64_t number = 0;
  int start = -1;  // DP_RESTARTS, the restarts of the run before this start
};

// Where a thread is in a training step.
struct StepPlace {
  Phase phase = Phase::forward;
  int replica = 0;
  std::int64_t step = 0;
  int stage = 0, micro_batch = 0;  // micro_batch: Progress::item()
};

// Parses clauses separated by commas. Error(usage) names the faulty clause.
std::vector<Failpoint> parse_failpoints(std::string_view text);
std::vector<Failpoint> failpoints_from_environment();  // without those of other starts

// DP_FAIL_GATE: whether it is set, and how many threads of this process stall at it.
bool stalls_are_gated();
int gated_stalls();

class Failpoints {
 public:
  Failpoints();
  // Throws or sleeps if a clause matches. Returns whether the caller must plant a NaN.
  bool hit(const StepPlace& place) const { return points_.empty() ? false : hit_slowly(place); }

  bool empty() const { return points_.empty(); }
  bool plants_nan() const {
    return std::ranges::any_of(points_, [](const Failpoint& point) { return point.action == FailAction::nan; });
  }

 private:
  bool hit_slowly(const StepPlace& place) const;
  std::vector<Failpoint> points_;
};

}  // namespace dp::engine
