// Random input batches of a measurement, and a file of initial weights and batches for pytorch_step.py.
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
// Normally distributed images, uniform labels, consecutive sample numbers. Each batch has only `rows`, a rank's shard.
std::vector<Batch> random_batches(const Model& model, std::int64_t batch, int count, std::uint64_t seed, Range rows);

// The same with images from one device-resident set of random bytes. Training pads them by 4, crops and flips.
std::vector<Batch> resident_batches(const Model& model, std::int64_t batch, int count, std::uint64_t seed, Range rows);

// Writes raw values in host byte order: the weights in the model's parameter order (float32), the images of all batches
// (float32, or the bytes of the device-resident set), then the labels of all batches (int32).
void save_inputs(const std::filesystem::path& path, const std::vector<std::pair<std::string, Tensor>>& weights,
                 const std::vector<Batch>& batches);

}  // namespace dp::benchmarks
