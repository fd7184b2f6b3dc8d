// The engine under all rules of the simulated CUDA: a selection. rules_slow_test.cpp has every combination.
#include <array>
#include <set>
#include <utility>

#include "cuda/engine/rules_runs.h"
#include "support/pairwise.h"

using namespace dp;
using namespace dp::test;

TEST_CASE("pairwise: every pair of values is in a row") {
  const std::array<std::size_t, 4> sizes{5, 3, 1, 2};
  const auto rows = pairwise(sizes);
  CHECK(rows.size() < 5 * 3 * 1 * 2);
  for (std::size_t a = 0; a < sizes.size(); ++a)
    for (std::size_t b = a + 1; b < sizes.size(); ++b) {
      std::set<std::pair<std::size_t, std::size_t>> seen;
      for (const auto& row : rows) seen.insert({row[a], row[b]});
      CHECK(seen.size() == sizes[a] * sizes[b]);
    }
}

TEST_CASE("rules: every pair of machine, reduction, mode, precision and graphs is free of reports") {
  const std::pair<int, Comm> machines[] = {
      {1, Comm::p2p}, {2, Comm::p2p}, {4, Comm::p2p}, {2, Comm::nccl}, {4, Comm::nccl}};
  for (const auto& [machine, reduce, norm, amp, graphs] : pairwise<5>({5, 3, 3, 3, 3})) {
    const auto [gpus, comm] = machines[machine];
    check_run({gpus, comm, kRulesReductions[reduce], kRulesNorms[norm], kRulesAmps[amp], kRulesGraphs[graphs]});
  }
}

TEST_CASE("rules: eight GPUs are free of reports, over each communicator") {
  check_run({8, Comm::p2p, Reduce::sharded, BatchNormMode::pooled, Amp::bfloat16, Graphs::always});
  check_run({8, Comm::nccl, Reduce::all_reduce, BatchNormMode::sync, Amp::off, Graphs::automatic});
}
