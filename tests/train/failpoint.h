#pragma once

#include <stdlib.h>

namespace dp::test {

// Sets DP_FAIL during its lifetime. An engine reads DP_FAIL in its constructor.
class Failpoint {
 public:
  explicit Failpoint(const char* text) { ::setenv("DP_FAIL", text, 1); }
  ~Failpoint() { ::unsetenv("DP_FAIL"); }
  Failpoint(const Failpoint&) = delete;
  Failpoint& operator=(const Failpoint&) = delete;
};

}  // namespace dp::test
