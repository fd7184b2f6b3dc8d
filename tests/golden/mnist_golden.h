// The initial weights and batches of golden_mnist.py, drawn from the same formulas.
#pragma once

#include <vector>

#include "dp/loader.h"
#include "dp/model.h"

namespace dp::test {

inline constexpr std::uint64_t kGoldenSeed = 42;
inline constexpr std::int64_t kGoldenBatch = 60;
inline constexpr int kGoldenSteps = 6;

// One entry per parameter of the model, in row-major order.
std::vector<std::vector<double>> golden_initial_weights(const Model& model);
Batch golden_batch(int step);

}  // namespace dp::test
