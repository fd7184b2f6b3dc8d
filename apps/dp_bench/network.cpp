#include "network.h"

#include <dp/dataset.h>
#include <dp/models.h>

namespace dp_bench {

Network resolved(Network network) {
  const dp::models::Entry& entry = dp::models::find(network.model);
  const dp::datasets::Entry& images = dp::datasets::find(entry.recipe.dataset);
  if (network.input.empty()) network.input.assign(images.image.dims().begin(), images.image.dims().end());
  if (network.classes == 0) network.classes = images.classes;
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
