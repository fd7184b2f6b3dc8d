#include "dp/random.h"

#include <cmath>
#include <numbers>

namespace dp {

std::uint32_t Random::below(std::uint32_t bound) {
  // Lemire, "Fast random integer generation in an interval" (2019): rejects the few low products that cause bias.
  std::uint64_t product = std::uint64_t{next()} * bound;
  const std::uint32_t threshold = (0u - bound) % bound;
  while (static_cast<std::uint32_t>(product) < threshold) product = std::uint64_t{next()} * bound;
  return static_cast<std::uint32_t>(product >> 32);
}

float Random::normal() {
  const double radius = std::sqrt(-2.0 * std::log((static_cast<double>(next()) + 1.0) * 0x1p-32));
  const double angle = 2.0 * std::numbers::pi * static_cast<double>(next()) * 0x1p-32;
  return static_cast<float>(radius * std::cos(angle));
}

}  // namespace dp
