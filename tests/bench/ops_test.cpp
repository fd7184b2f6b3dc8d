// dp_bench ops over fake programs.
#include "apps/dp_bench/ops.h"

#include "apps/dp_bench/child.h"
#include "bench/fake_programs.h"
#include "bench/shown_table.h"
#include "support/catch.h"

using namespace dp::test;
using Facts = std::vector<std::pair<std::string, std::string>>;
using Lines = std::vector<std::string>;

namespace {

Lines notes;
void note(const std::string& line) { notes.push_back(line); }

constexpr const char* kOps = R"sh(
log "dp: $*"
op() { say op "kind=$1" "label=$2" "implementation=$3" "convolution=$4" times=$5 flops=$6 bytes=$7; }
case "$*" in *--gpu*) say rates;; *) say rates gflops=100 gbytes=10 source=guessed;; esac
op conv2d_forward conv2 winograd '4 32 26 26 64 3 3 1 1 0 0 1 1 1' 2 4e8 1e6
op linear_forward fc1+relu onednn '4 128 1 1 10 1 1 1 1 0 0 1 1 1' 1 2e7 5e6
op relu relu1 loop '' 3 0 2e7
op conv2d_forward sc none '4 64 8 8 128 1 1 2 2 0 0 1 1 1' 0 0 0
op conv2d_forward row none '4 16 1 9 8 3 3 1 1 1 1 1 1 1' 0 0 0
say ready
read -r command; log "dp: $command"; say done 'seconds=0.008 0.001 0.004 1 1'
read -r command; log "dp: $command"; say done 'seconds=0.010 0.003 0.004 1 1'
)sh";

constexpr const char* kTorch = R"sh(
log "torch: $* $OMP_NUM_THREADS $OPENBLAS_NUM_THREADS $OMP_PROC_BIND $OMP_PLACES"
while read -r command && [ "$command" != go ]; do log "torch: $command"; done
say ready version=2.1
read -r command; log "torch: $command"; say done 'seconds=0.012 0.001'
read -r command; log "torch: $command"; say done 'seconds=0.015 0.005'
)sh";

dp_bench::OpsOptions small_ops() {
  dp_bench::OpsOptions options;
  options.run.batch_size = 4;
  options.threads = 2;
  options.on_cpu = true;
  options.rounds = 2;
  options.python = "/bin/sh";
  return options;
}

const Lines kHead{
    "op times ms ms_q1 ms_q3 rate unit floor_ms step_ms of_floor pytorch_ms pytorch_ratio implementation",
    "op | times | ms | quartile | quartile | rate | unit | floor ms | ms in a step | ms / floor | PyTorch ms | "
    "PyTorch / dp | implementation"};
const Lines kSumsHead{"op step_ms floor_ms of_floor pytorch_ms pytorch_ratio",
                      "ops | ms in a step | floor ms | ms / floor | PyTorch ms | PyTorch / dp"};

Lines after(Lines head, const Lines& rows) {
  head.insert(head.end(), rows.begin(), rows.end());
  return head;
}

}  // namespace

TEST_CASE("ops: options are passed to the programs, and the tables have times, floors, ratios and sums") {
  const FakePrograms fakes;
  fakes.add("bench_ops", kOps);
  fakes.add("pytorch_ops.py", kTorch);
  dp_bench::OpsOptions options = small_ops();
  options.run.parallel.amp = dp::Amp::bfloat16;
  options.run.parallel.exact_convolutions = true;
  notes.clear();
  const dp_bench::Report report = measure_ops(options, note);
  CHECK(notes == Lines{"round 1 of 2", "round 2 of 2"});
  CHECK(fakes.log() ==
        Lines{"dp: --model mnist_convnet --input 1,28,28 --classes 10 --batch 4 --threads 2 --exact-conv --amp bf16",
              "torch: --threads 2 --amp bf16 2 2 true cores",
              "torch: op conv2d_forward 4 32 26 26 64 3 3 1 1 0 0 1 1 1",
              "torch: op linear_forward 4 128 1 1 10 1 1 1 1 0 0 1 1 1",
              "torch: op conv2d_forward 4 64 8 8 128 1 1 2 2 0 0 1 1 1",
              "torch: op conv2d_forward 4 16 1 9 8 3 3 1 1 1 1 1 1 1", "dp: run 5", "torch: run 5", "dp: run 5",
              "torch: run 5"});
  CHECK(report.command == "ops");
  CHECK(report.title == "Ops of mnist_convnet on 1x28x28, batch 4, 2 threads");
  CHECK(report.facts == Facts{{"rounds", "2 of 5 steps"},
                              {"PyTorch", "torch 2.1"},
                              {"peak", "100.0 GFLOP/s"},
                              {"copy", "10.0 GB/s"},
                              {"rates", "guessed"}});
  REQUIRE(report.sections.size() == 2);
  CHECK(report.sections[0].key == "sums");
  CHECK(shown_table(report.sections[0]) ==
        after(kSumsHead, {"all | 32.00 | 14.50 | 2.21 | none | none",
                          "ops also measured in PyTorch | 20.00 | - | - | 30.00 | 1.50"}));
  const dp_bench::Section& section = report.sections[1];
  CHECK(section.key == "ops");
  CHECK(section.title == "Ops of a training step");
  CHECK_THAT(section.text, Catch::StartsWith("Ops of equal shapes share a row. Floor: "));
  CHECK(shown_table(section) ==
        after(kHead,
              {"conv2 conv2d_forward (32x26x26 -> 64, 3x3/1) | 2 | 9.000 | 8.500 | 9.500 | 44.4 | GFLOP/s | 4.000 | "
               "18.00 | 2.25 | 13.500 | 1.50 | winograd",
               "fc1+relu linear_forward (128 -> 10) | 1 | 2.000 | 1.500 | 2.500 | 10.0 | GFLOP/s | 0.500 | 2.00 | "
               "4.00 | 3.000 | 1.50 | onednn",
               "relu1 relu | 3 | 4.000 | 4.000 | 4.000 | 5.0 | GB/s | 2.000 | 12.00 | 2.00 | - | - | loop",
               "sc conv2d_forward (64x8x8 -> 128, 1x1/2) | 0 | 1000.000 | 1000.000 | 1000.000 | 0.0 | GB/s | - | "
               "0.00 | - | - | - | none",
               "row conv2d_forward (16x1x9 -> 8, 3x3/1) | 0 | 1000.000 | 1000.000 | 1000.000 | 0.0 | GB/s | - | 0.00 | "
               "- | - | - | none"}));
  CHECK(section.rows.at(0).samples == std::vector<double>{0.008, 0.01});
  REQUIRE(section.bars);
  CHECK(section.bars->value == 2);
  CHECK(section.bars->low == std::size_t{3});
  CHECK(section.bars->high == std::size_t{4});
}

TEST_CASE("ops: without measured rates of a GPU there are no floors, and both programs get its id") {
  const FakePrograms fakes;
  fakes.add("bench_ops", kOps);
  fakes.add("pytorch_ops.py", kTorch);
  dp_bench::OpsOptions options = small_ops();
  options.on_cpu = false;
  options.gpu = "3";
  const dp_bench::Report report = measure_ops(options, note);
  CHECK(fakes.log().at(0) == "dp: --model mnist_convnet --input 1,28,28 --classes 10 --batch 4 --threads 2 --gpu 3");
  CHECK(fakes.log().at(1) == "torch: --threads 2 --gpu 3 2 2 true cores");
  CHECK(report.title == "Ops of mnist_convnet on 1x28x28, batch 4, GPU 3");
  CHECK(report.facts == Facts{{"rounds", "2 of 5 steps"}, {"PyTorch", "torch 2.1"}});
  CHECK(shown_table(report.sections.at(0)) ==
        after(kSumsHead, {"all | 32.00 | none | none | none | none",
                          "ops also measured in PyTorch | 20.00 | - | - | 30.00 | 1.50"}));
  CHECK(shown_table(report.sections.at(1)).at(4) ==
        "relu1 relu | 3 | 4.000 | 4.000 | 4.000 | 5.0 | GB/s | - | 12.00 | - | - | - | loop");
}

TEST_CASE("ops: without PyTorch its columns are empty, and the facts have the reason") {
  const FakePrograms fakes;
  fakes.add("bench_ops", kOps);
  const std::string reads = "while read -r command && [ \"$command\" != go ]; do :; done; ";
  fakes.add("pytorch_ops.py", reads + "say error 'message=out of luck'");
  const auto check = [&](const dp_bench::OpsOptions& options, const std::string& reason) {
    const dp_bench::Report report = measure_ops(options, note);
    CHECK(report.facts.at(1) == std::pair<std::string, std::string>{"PyTorch", reason});
    CHECK(shown_table(report.sections.at(0)) == after(kSumsHead, {"all | 32.00 | 14.50 | 2.21 | none | none"}));
    CHECK_THAT(shown_table(report.sections.at(1)).at(2), Catch::EndsWith(" | 2.25 | - | - | winograd"));
  };
  dp_bench::OpsOptions options = small_ops();
  check(options, "out of luck");
  fakes.add("pytorch_ops.py", reads + "say absent 'reason=PyTorch is not installed'");
  check(options, "PyTorch is not installed");
  options.python = "/no/such/python";
  check(options, "python ended: No such file or directory");
  options.without_pytorch = true;
  check(options, "skipped by --without-pytorch");
}

TEST_CASE("ops: a failed program is an error with its message") {
  const FakePrograms fakes;
  fakes.add("bench_ops", "say rates; say error 'message=no such model'; exit 1");
  CHECK_THROWS_WITH(measure_ops(small_ops(), note), "no such model");
  fakes.add("bench_ops", "echo 'out of memory' >&2; exit 1");
  CHECK_THROWS_WITH(measure_ops(small_ops(), note), "bench_ops ended: out of memory");
}
