// Checks for failures outside a context's streams that invalidate its work. They run after every wait for the streams.
#pragma once

#include <vector>

namespace dp::kernels::cuda {

class Guard {
 public:
  virtual ~Guard() = default;
  virtual void check() = 0;  // throws Aborted or Error(device) if the work is invalid
};

// The guards of one context; not owned.
using Guards = std::vector<Guard*>;

inline void check_all(const Guards& guards) {
  for (Guard* const guard : guards) guard->check();
}

}  // namespace dp::kernels::cuda
