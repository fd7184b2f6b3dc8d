// docs/reference/cli.md is the programs' own description of their options.
#include <fstream>
#include <sstream>

#include "apps/run_program.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

TEST_CASE("the page of options is what the programs write") {
  std::ifstream file(DP_SOURCE "/docs/reference/cli.md");
  std::ostringstream page;
  page << file.rdbuf();
  const dp::test::TemporaryFolder temp;
  const std::string of_bench = "exec '" DP_BENCH_PATH "' --help-page";
  const std::string written = dp::test::run_dp_train({"--help-page"}, temp.path()).out + "\n" +
                              dp::test::Program({}, temp.path(), {}, {"/bin/sh", "-c", of_bench}).wait().out;
  INFO("./dev docs writes it");
  CHECK(page.str() == written);
}
