// Small random networks with every layer: tensors with several readers, nested residuals, additions of any two tensors
// of equal shape.
#pragma once

#include <cstdint>

#include "dp/model.h"

namespace dp::test {

// The same seed gives the same graph. With a batch of two rows some normalisations see only two values per channel.
Model random_graph(std::uint64_t seed);

}  // namespace dp::test
