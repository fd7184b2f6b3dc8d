#pragma once

#include <stdlib.h>

namespace dp::test {

// DP_FAIL for as long as it lives; read when an engine is made.
class Failpoint {
 public:
  explicit Failpoint(const char* text) { ::setenv("DP_FAIL", text, 1); }
  ~Failpoint() { ::unsetenv("DP_FAIL"); }
  Failpoint(const Failpoint&) = delete;
  Failpoint& operator=(const Failpoint&) = delete;
};

}  // namespace dp::test
