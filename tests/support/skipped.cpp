#include <cstdio>

#include "support/catch.h"

namespace dp::test {
namespace {
bool skipped = false;
}

void mark_skipped(const std::string& reason) {
  skipped = true;
  std::printf("skipped: %s\n", reason.c_str());
}

bool any_skipped() { return skipped; }

}  // namespace dp::test
