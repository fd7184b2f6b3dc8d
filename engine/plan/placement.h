// Static placement of buffers in one arena: buffers share memory if their lifetimes do not overlap.
#pragma once

#include <cstddef>
#include <vector>

namespace dp::engine {

struct Lifetime {
  std::size_t bytes = 0;
  int first = 0, last = 0;  // steps, inclusive
  std::size_t offset = 0;   // result, a multiple of 64
};

// Sets all offsets and returns the arena size in bytes. Places the largest buffer first, each into the lowest gap that
// fits.
std::size_t place(std::vector<Lifetime>& buffers);

}  // namespace dp::engine
