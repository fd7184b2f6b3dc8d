// The measured network and its input shape.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dp_bench {

struct Network {
  std::string model = "mnist_convnet";
  std::vector<std::int64_t> input;  // (C,H,W) of a sample; empty: the model's default
  std::int64_t classes = 0;         // 0: the model's default
};

// Fills in the defaults: images and classes of the model's data set. dp::Error(usage) for a model that is not in the
// registry or does not fit the shape.
Network resolved(Network network);
std::string shape_text(const std::vector<std::int64_t>& shape, const char* between);  // "3,32,32"
std::int64_t numbers_per_sample(const Network& network);

}  // namespace dp_bench
