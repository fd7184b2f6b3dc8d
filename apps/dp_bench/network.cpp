#include "network.h"

#include <dp/models.h>

namespace dp_bench {

Network resolved(Network network) {
  const dp::models::Entry& entry = dp::models::find(network.model);
  const bool residual = network.model == "resnet18";
  if (network.input.empty())
    network.input = residual ? std::vector<std::int64_t>{3, 32, 32} : std::vector<std::int64_t>{1, 28, 28};
  if (network.classes == 0) network.classes = residual ? 100 : 10;
  entry.make(dp::Shape(network.input), network.classes);
  return network;
}

std::string shape_text(const std::vector<std::int64_t>& shape, const char* between) {
  std::string text;
  for (const std::int64_t size : shape) text += (text.empty() ? "" : between) + std::to_string(size);
  return text;
}

std::int64_t numbers_per_sample(const Network& network) {
  std::int64_t count = 1;
  for (const std::int64_t size : network.input) count *= size;
  return count;
}

}  // namespace dp_bench
