// Runs the tests. Exit status: 0 all passed; 1 a test failed; 4 no failure, but a test was skipped.
#if !defined(DP_CATCH_V3)
#define CATCH_CONFIG_RUNNER
#endif
#include <csignal>

#include "support/catch.h"

int main(int argc, char** argv) {
  // Child processes inherit ignored signals. nohup ignores SIGHUP; a background job of a shell ignores SIGINT.
  for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGUSR1, SIGUSR2}) std::signal(number, SIG_DFL);
  const int failed = Catch::Session().run(argc, argv);
  if (failed != 0) return 1;
  return dp::test::any_skipped() ? 4 : 0;
}
