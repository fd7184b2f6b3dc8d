// Small random networks of every layer: tensors with several readers, residuals of residuals, additions of any two tensors of one shape.
#pragma once

#include <cstdint>

#include "dp/model.h"

namespace dp::test {

// The same graph for the same seed. It normalises over two values a channel where a batch has two rows.
Model random_graph(std::uint64_t seed);

}  // namespace dp::test
