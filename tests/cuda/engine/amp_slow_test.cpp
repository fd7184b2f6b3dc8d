// The checks of amp_test.cpp and graphs_test.cpp on a narrow ResNet18, whose convolutions use tensor cores.
#include "cuda/engine/amp_runs.h"

using namespace dp;
using namespace dp::test;

TEST_CASE("mixed precision: a narrow resnet18 has the same bits on 1, 2 and 4 GPUs and in any order of threads") {
  const Model model = models::resnet18({.classes = 10, .input = {3, 4, 4}, .width = 4});
  for (const Amp amp : kAmpTypes) {
    const auto expected = sharded_steps(model, amp, 1);
    for (const int gpus : {2, 4}) {
      INFO(gpus << " GPUs, " << name_of(amp));
      CHECK(bit_equal(sharded_steps(model, amp, gpus), expected));
    }
  }
}

TEST_CASE("mixed precision: a narrow resnet18 whose weights are gathered in 16 bits trains to the same bits") {
  for (const Amp amp : kAmpTypes)
    for (const int gpus : {2, 4}) check_weights_in_16_bits(narrow_resnet(/*relu=*/true), amp, gpus, 16000);
}

TEST_CASE("simulated GPUs: the graph of a narrow resnet18's step makes the launches of the eager step") {
  for (const Amp amp : {Amp::off, Amp::bfloat16, Amp::float16})
    for (const BatchNormMode mode : {BatchNormMode::master, BatchNormMode::sync})
      check_launches_of_residual(narrow_resnet(/*relu=*/true), amp, mode);
}
