// The inputs of golden_resnet.py and the encoding of its results.
#pragma once

#include <string>

#include "dp/checkpoint.h"
#include "dp/loader.h"
#include "dp/model.h"
#include "golden/golden_file.h"

namespace dp::test {

inline constexpr std::uint64_t kResnetSeed = 42;
inline constexpr std::int64_t kResnetTracked = 5;  // num_batches_tracked

// The initial state dict of golden_resnet.py. `like` gives the names and shapes; `network` is the model's name.
NamedTensors resnet_state(const std::string& network, const NamedTensors& like);
Batch resnet_batch(const Model& model, std::int64_t rows, std::uint64_t number);

// |actual - golden| / |golden|. If the file has a norm for this tensor, it replaces |golden|. For large tensors this is
// an estimate from products with random signs, accurate to a factor of 1.5.
double golden_error(const GoldenFile& golden, const std::string& name, const Tensor& actual);

}  // namespace dp::test
