// The engine under all rules of the simulated CUDA: every combination.
#include "cuda/engine/rules_runs.h"

using namespace dp;
using namespace dp::test;

namespace {

void check_all(int gpus, Comm comm) {
  for (const Reduce reduce : kRulesReductions)
    for (const BatchNormMode norm : kRulesNorms)
      for (const Amp amp : kRulesAmps)
        for (const Graphs graphs : kRulesGraphs) check_run({gpus, comm, reduce, norm, amp, graphs});
}

}  // namespace

TEST_CASE("rules: every combination on one GPU is free of reports") { check_all(1, Comm::p2p); }
TEST_CASE("rules: every combination on 2 GPUs over p2p is free of reports") { check_all(2, Comm::p2p); }
TEST_CASE("rules: every combination on 2 GPUs over nccl is free of reports") { check_all(2, Comm::nccl); }
TEST_CASE("rules: every combination on 4 GPUs over p2p is free of reports") { check_all(4, Comm::p2p); }
TEST_CASE("rules: every combination on 4 GPUs over nccl is free of reports") { check_all(4, Comm::nccl); }
TEST_CASE("rules: every combination on 8 GPUs over p2p is free of reports") { check_all(8, Comm::p2p); }
TEST_CASE("rules: every combination on 8 GPUs over nccl is free of reports") { check_all(8, Comm::nccl); }
