// What can spoil a context's work from outside its streams, and is asked after every wait for them.
#pragma once

#include <vector>

namespace dp::kernels::cuda {

class Guard {
 public:
  virtual ~Guard() = default;
  virtual void check() = 0;  // throws Aborted or Error(device) when the work is spoilt
};

// Of one context; not owned.
using Guards = std::vector<Guard*>;

inline void check_all(const Guards& guards) {
  for (Guard* const guard : guards) guard->check();
}

}  // namespace dp::kernels::cuda
