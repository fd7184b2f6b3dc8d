#include "kernels/cuda/tuning/remembered.h"

#include <cmath>
#include <cstdlib>

#include "kernels/cuda/tuning/cache_folder.h"
#include "kernels/cuda/tuning/tuner.h"
#include "kernels/cuda/tuning/tuning_cache.h"

namespace dp::kernels::cuda {
namespace {

std::string machine_of_all(std::span<const Device> devices) {
  std::string all;
  for (const Device& device : devices) all += to_string(device) + " is " + machine_of(device.index) + "; ";
  return all;
}

}  // namespace

// Reads the file on every call; a run calls it once.
std::optional<double> remembered(std::span<const Device> devices, const std::string& what) {
  const auto found = TuningCache(cache_folder(), machine_of_all(devices)).find(what);
  if (!found) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(found->candidate.c_str(), &end);
  return *end == '\0' && end != found->candidate.c_str() && std::isfinite(value) ? std::optional(value) : std::nullopt;
}

void remember(std::span<const Device> devices, const std::string& what, double value) {
  TuningCache(cache_folder(), machine_of_all(devices)).keep(what, {std::to_string(value), 0});
}

}  // namespace dp::kernels::cuda
