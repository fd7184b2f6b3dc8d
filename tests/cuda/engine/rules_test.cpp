// The engine under all rules of the simulated CUDA: a selection. rules_slow_test.cpp has every combination.
#include "cuda/engine/rules_runs.h"

using namespace dp;
using namespace dp::test;

TEST_CASE("rules: a selection of reductions, communicators, modes, precisions and graphs is free of reports") {
  int turn = 0;
  for (const int gpus : {1, 2, 4, 8})
    for (const Comm comm : {Comm::p2p, Comm::nccl})
      for (int i = 0; i < (gpus == 8 ? 1 : 3); ++i, ++turn) {
        if (gpus == 1 && comm == Comm::nccl) continue;
        check_run({gpus, comm, kRulesReductions[turn % 3], kRulesNorms[turn / 2 % 3], kRulesAmps[(turn + turn / 3) % 3],
                   kRulesGraphs[i]});
      }
}
