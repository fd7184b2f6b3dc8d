// Inputs of a measurement: random images and labels, made before it, with the starting weights in one file for another program.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "dp/loader.h"
#include "dp/model.h"

namespace dp::benchmarks {

struct Range {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};
// Normally distributed images, uniform labels; samples numbered through. Of each batch these rows: a rank's part.
std::vector<Batch> random_batches(const Model& model, std::int64_t batch, int count, std::uint64_t seed, Range rows);

// The same as one set of random bytes that the devices keep, padded by 4, cropped and flipped in training.
std::vector<Batch> kept_batches(const Model& model, std::int64_t batch, int count, std::uint64_t seed, Range rows);

// Raw numbers of this machine's byte order, one after the other: the weights in the model's order of parameters (float32), the
// images of all batches (float32, or the set's bytes), their labels (int32).
void save_inputs(const std::filesystem::path& path, const std::vector<std::pair<std::string, Tensor>>& weights,
                 const std::vector<Batch>& batches);

}  // namespace dp::benchmarks
