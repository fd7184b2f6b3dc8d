// The cases that nccl_graphs_test.cpp and blocking_test.cpp omit: more GPUs, every kind of step over both
// communicators.
#include "cuda/comm/blocking_cases.h"
#include "cuda/comm/nccl_runs.h"

using namespace dp;
using namespace dp::test;

TEST_CASE("nccl: two communicators in one graph on 4 GPUs") {
  check_two_communicators(residual_net(/*relu=*/true, /*dropout=*/true), 4);
}

TEST_CASE("blocking calls: none in any kind of step with p2p and nccl, with announced sizes and without") {
  const Model model = residual_net(/*relu=*/true, /*dropout=*/true);
  for (const Comm comm : {Comm::p2p, Comm::nccl})
    for (const Case& one : kCases)
      for (const bool prepared : {false, true}) check_case_on_two(model, one, comm, prepared);
}
