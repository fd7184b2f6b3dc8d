#include "engine/random_graphs/graph_gradients.h"
#include "support/catch.h"

using namespace dp::test;

TEST_CASE("random graphs: the gradients of 2,000 graphs equal difference quotients") {
  GraphErrors worst;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) worst.take(check_gradients(seed));
  WARN("largest errors: difference quotients " << worst.differences.error << ", fused " << worst.fused.error
                                               << ", synchronised " << worst.sync.error << ", CPU "
                                               << worst.single.error << ", fused there " << worst.single_fused.error
                                               << "; batches drawn: " << worst.draws);
}
