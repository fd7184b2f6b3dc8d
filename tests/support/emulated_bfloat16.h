// Makes CPU contexts emulate bfloat16 with float32 instructions while this object exists.
#pragma once

#include <cstdlib>

#include "kernels/device/cpu/bfloat16.h"

namespace dp::test {

class EmulatedBfloat16 {
 public:
  EmulatedBfloat16() { ::setenv("DP_EMULATE_BF16", "1", 1); }
  ~EmulatedBfloat16() { ::unsetenv("DP_EMULATE_BF16"); }
  EmulatedBfloat16(const EmulatedBfloat16&) = delete;
  EmulatedBfloat16& operator=(const EmulatedBfloat16&) = delete;
};

}  // namespace dp::test
