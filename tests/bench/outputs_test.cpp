// Outputs of dp_bench that fail, block, are read slowly or have no name.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <thread>

#include "apps/dp_bench/report/report.h"
#include "bench/fake_programs.h"
#include "bench/run_bench.h"
#include "dp/error.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

using dp_bench::OutputFile;
using namespace dp::test;

namespace {

// A report in milliseconds, over a fake bench_ops, and what dp_bench writes to stderr meanwhile.
const std::string kQuick = "ops --cpu --model mlp --rounds 1 --without-pytorch ", kProgress = "round 1 of 1\n";

void add_quick_program(const FakePrograms& fakes) {
  fakes.add("bench_ops", R"sh(
say rates gflops=100 gbytes=10 source=invented
say op kind=linear_forward label=fc1 implementation=none times=1 flops=1000 bytes=1000
say ready
while read -r command; do say done seconds=0.001; done
)sh");
}

BenchOutcome bench(const std::string& before, const std::string& arguments) {
  return run_shell("(" + before + std::string(DP_BENCH_PATH) + " " + arguments + ")");
}

void check_failed_output(const BenchOutcome& outcome, const std::string& fragment, const std::string& before = "") {
  CHECK(outcome.code == 7);
  CHECK_THAT(outcome.text, Catch::StartsWith(before + "dp_bench: error: ") && Catch::Contains(fragment));
}

}  // namespace

TEST_CASE("dp_bench ends with exit code 7 if stdout is full") {
  const FakePrograms fakes;
  add_quick_program(fakes);
  for (const auto& [arguments, progress] : {std::pair<std::string, std::string>{"--help", ""},
                                            {"--version", ""},
                                            {"step --help", ""},
                                            {kQuick, kProgress}}) {
    INFO(arguments);
    check_failed_output(bench("", arguments + " 2>&1 > /dev/full"), "stdout could not be written", progress);
    CHECK(bench("", arguments + " 2>&1 > /dev/null | cat").text == progress);
  }
}

TEST_CASE("result files reject a pipe without a reader, an empty name and a full disk") {
  const FakePrograms fakes;
  add_quick_program(fakes);
  const TemporaryFolder folder;
  const std::string in = "cd " + folder.path() + " && mkfifo -m 600 pipe 2> /dev/null; ";
  for (const char* option : {"--json", "--html", "--markdown"}) {
    INFO(option);
    check_failed_output(bench(in, kQuick + option + " pipe 2>&1 > /dev/null"),
                        "cannot write pipe: it is a pipe or socket");
    check_failed_output(bench(in, kQuick + option + " /dev/full 2>&1 > /dev/null"),
                        "cannot write /dev/full: No space left", kProgress);
    check_failed_output(bench(in + "ulimit -f 0; ", kQuick + option + " file 2>&1 > /dev/null"),
                        "cannot write file: File too large", kProgress);
    const BenchOutcome unnamed = bench(in, kQuick + option + " ''");
    CHECK(unnamed.code == 2);
    CHECK_THAT(unnamed.text, Catch::Contains(std::string(option) + ": it is empty; name a file"));
    CHECK(bench(in, kQuick + option + "= --without-pytorch").code == 2);
    // Descriptor 3 waits for the reader. Without a reader dp_bench refuses the pipe.
    const BenchOutcome read =
        bench(in + "cat pipe & exec 3> pipe; ", kQuick + option + " pipe > /dev/null; exec 3>&-; wait");
    CHECK(read.text.size() > 500);
    write_text(folder / "old", "longer than nothing");
    CHECK(bench(in, kQuick + option + " old > /dev/null && head -c 9 old").text != kProgress + "longer th");
  }
}

TEST_CASE("a result file: a slow reader of a pipe receives every byte once, then the end of the file") {
  const TemporaryFolder folder;
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  std::string text;  // more than three times what a pipe holds
  for (int i = 0; text.size() < 250000; ++i) text += std::to_string(i) + ' ';
  const int reader = ::open((folder / "pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  REQUIRE(reader >= 0);
  auto file = std::make_unique<OutputFile>(folder / "pipe");
  REQUIRE(::fcntl(reader, F_SETFL, 0) == 0);
  std::string got;
  std::thread reading([&] {
    std::string part(20000, '\0');
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    for (ssize_t count = 0; (count = ::read(reader, part.data(), part.size())) > 0;) {
      got.append(part, 0, static_cast<std::size_t>(count));
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
  CHECK_NOTHROW(file->write(text));
  file.reset();  // the reader's end
  reading.join();
  CHECK(got == text);
  ::close(reader);
}

TEST_CASE("a result file keeps its old content until the new content replaces it") {
  const TemporaryFolder folder;
  const std::string path = folder / "out";
  write_text(path, "a long old text");
  OutputFile file(path);
  CHECK(read_text(path) == "a long old text");
  file.write("new");
  CHECK(read_text(path) == "new");
  OutputFile none("");
  CHECK_NOTHROW(none.write("nothing"));
  CHECK_THROWS_WITH(OutputFile(folder / "no/file"), "cannot write " + (folder / "no/file") +
                                                        ": No such file or directory; choose a writable folder with "
                                                        "free space");
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_THROWS_WITH(OutputFile(folder / "pipe"), "cannot write " + (folder / "pipe") +
                                                     ": it is a pipe or socket without a reader; choose a writable "
                                                     "folder with free space");
}
