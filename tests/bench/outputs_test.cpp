// Outputs of dp_bench that fail, block or have no name.
#include "bench/run_bench.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

using namespace dp::test;

namespace {

BenchOutcome bench(const std::string& before, const std::string& arguments) {
  return run_shell("(" + before + std::string(DP_BENCH_PATH) + " " + arguments + ")");
}

void check_failed_output(const BenchOutcome& outcome, const std::string& fragment) {
  CHECK(outcome.code == 7);
  CHECK_THAT(outcome.text, Catch::StartsWith("dp_bench: error: ") && Catch::Contains(fragment));
}

TEST_CASE("dp_bench ends with exit code 7 if stdout is full") {
  for (const char* arguments : {"--help", "--version", "step --help", "scaling --model-only --model mlp"}) {
    INFO(arguments);
    check_failed_output(bench("", std::string(arguments) + " 2>&1 > /dev/full"), "stdout could not be written");
    CHECK(bench("", std::string(arguments) + " 2>&1 > /dev/null | cat").text.empty());
  }
}

TEST_CASE("result files reject a pipe without a reader, an empty name and a full disk") {
  const TemporaryFolder folder;
  const std::string in = "cd " + folder.path() + " && mkfifo -m 600 pipe 2> /dev/null; ",
                    model = "scaling --model-only --model mlp ";
  for (const char* option : {"--json", "--html", "--markdown"}) {
    INFO(option);
    check_failed_output(bench(in, model + option + " pipe 2>&1 > /dev/null"),
                        "cannot write pipe: it is a pipe or socket");
    check_failed_output(bench(in, model + option + " /dev/full 2>&1 > /dev/null"),
                        "cannot write /dev/full: No space left");
    check_failed_output(bench(in + "ulimit -f 0; ", model + option + " file 2>&1 > /dev/null"),
                        "cannot write file: File too large");
    const BenchOutcome unnamed = bench(in, model + option + " ''");
    CHECK(unnamed.code == 2);
    CHECK_THAT(unnamed.text, Catch::Contains(std::string(option) + ": it is empty; name a file"));
    CHECK(bench(in, model + option + "= --model-only").code == 2);
    // Descriptor 3 waits for the reader. Without a reader dp_bench refuses the pipe.
    const BenchOutcome read =
        bench(in + "cat pipe & exec 3> pipe; ", model + option + " pipe > /dev/null; exec 3>&-; wait");
    CHECK(read.text.size() > 500);
    write_text(folder / "old", "longer than nothing");
    CHECK(bench(in, model + option + " old > /dev/null && head -c 9 old").text != "longer th");
  }
}

}  // namespace
