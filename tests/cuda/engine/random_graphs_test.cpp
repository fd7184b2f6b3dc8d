// Randomly generated networks on a simulated GPU: tests/engine/random_graphs/random_graphs_test.cpp.
#include "cuda/simulated_gpus.h"
#include "engine/random_graphs/graph_gradients.h"
#include "support/catch.h"

using namespace dp::test;

TEST_CASE("simulated GPUs: gradients of random graphs equal float64's, fused and not") {
  SimulatedGpus machine(1);
  for (std::uint64_t seed = 0; seed < 60; ++seed) check_gradients(seed, on_gpus(1, 1));
}
