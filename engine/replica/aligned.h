#pragma once

#include <cstddef>

namespace dp::engine {

// The size in bytes of a part of device memory, rounded up so that the next part begins at a multiple of 64 bytes.
constexpr std::size_t aligned(std::size_t bytes) {
  constexpr std::size_t kAlign = 64;
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

}  // namespace dp::engine
