// Where buffers lie in one arena, given when each is in use: two buffers share memory unless their lives overlap.
#pragma once

#include <cstddef>
#include <vector>

namespace dp::engine {

struct Lifetime {
  std::size_t bytes = 0;
  int first = 0, last = 0;  // steps, both included
  std::size_t offset = 0;   // answer, a multiple of 64
};

// Sets every offset; returns the arena's size. Largest first, each at the lowest gap that holds it.
std::size_t place(std::vector<Lifetime>& buffers);

}  // namespace dp::engine
