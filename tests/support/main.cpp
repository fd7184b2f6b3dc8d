// Runs the tests. Exit status: 0 all passed; 1 a test failed; 4 no failure, but a test was skipped.
#if !defined(DP_CATCH_V3)
#define CATCH_CONFIG_RUNNER
#endif
#include "support/catch.h"

int main(int argc, char** argv) {
  const int failed = Catch::Session().run(argc, argv);
  if (failed != 0) return 1;
  return dp::test::any_skipped() ? 4 : 0;
}
