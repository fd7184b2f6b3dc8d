// dp_bench compare over a fake program.
#include "apps/dp_bench/compare.h"

#include "bench/fake_programs.h"
#include "bench/shown_table.h"
#include "support/catch.h"

using namespace dp::test;
using Lines = std::vector<std::string>;

namespace {

// One device needs 200 and 300 ms, two replicas half of that, with mixed precision 40 %. ddp has no mixed precision.
void add_program(const FakePrograms& fakes) {
  fakes.add("bench_step", R"sh(
log "$*"
ms=100 n=0
case "$*" in *'--cpu 2'*) ms=50;; esac
case "$*" in *'--amp bf16'*) ms=40;; esac
case "$*" in *'--variant ddp'*) ms=80;; esac
case "$*" in *'--rank 0'*) say listening port=99;; esac
case "$*" in *'--variant ddp'*--amp*) say error 'message=no bfloat16 here'; exit 1;; esac
say ready
while read -r command; do
  n=$((n + 1))
  say done seconds=$((n * ms))e-3 peak_bytes=$((n * 2097152))
done
)sh");
}

dp_bench::StepOptions small_step() {
  dp_bench::StepOptions options;
  options.network.model = "mlp";  // ignored
  options.run.batch_size = 128;
  options.replicas = 2;
  options.threads = 4;
  options.rounds = 2;
  options.steps = options.warmup = 1;
  options.batches = 3;
  return options;
}

}  // namespace

TEST_CASE("compare: every engine is measured with and without mixed precision, and an error is a note in its row") {
  const FakePrograms fakes;
  add_program(fakes);
  const dp_bench::Report report = compare_report(small_step(), [](const std::string&) {});
  const std::string network =
      "--model resnet18 --input 3,32,32 --classes 100 --batch 128 --batches 3 --images-on host --cpu ";
  CHECK(fakes.log() == Lines{network + "1 --threads 2 --variant dp --save-inputs FILE",
                             network + "2 --threads 2 --variant dp", network + "2 --threads 2 --variant dp --amp bf16",
                             network + "2 --threads 2 --variant ddp --rank 0 --ranks 2 --port 0",
                             network + "2 --threads 2 --variant ddp --rank 1 --ranks 2 --port 99",
                             network + "2 --threads 2 --variant ddp --amp bf16 --rank 0 --ranks 2 --port 0",
                             network + "2 --threads 2 --variant ddp --amp bf16 --rank 1 --ranks 2 --port 99"});
  CHECK(report.command == "compare");
  CHECK(report.title == "ResNet18 on images of CIFAR-100's shape, global batch 128, 2 CPU replicas, threads each: 2");
  CHECK(report.facts.front() == std::pair<std::string, std::string>{"rounds", "2, interleaved: one slice per variant"});
  REQUIRE(report.sections.size() == 1);
  const dp_bench::Section& section = report.sections[0];
  CHECK(section.key == "compare");
  CHECK(section.title == "Seconds per epoch of 50,000 images");
  CHECK_THAT(section.text, Catch::Contains("Published figures are from another machine"));
  const std::string published =
      " | none | none | none | none | none"
      " | published: another machine, four RTX 2080 Ti, PyTorch";
  // 390.625 steps in an epoch. Two ranks have two processes.
  CHECK(shown_table(section) ==
        Lines{"what seconds_per_epoch seconds_q1 seconds_q3 speed_up mib_per_device ms_per_step",
              "what | s/epoch | quartile | quartile | speed-up | MiB/device | ms/step",
              "one device | 97.7 | 87.9 | 107.4 | 1.00 | 6 | 250.0", "dp x2 | 48.8 | 43.9 | 53.7 | 2.00 | 3 | 125.0",
              "dp x2 + AMP | 39.1 | 35.2 | 43.0 | 2.50 | 3 | 100.0", "ddp x2 | 78.1 | 70.3 | 85.9 | 1.25 | 6 | 200.0",
              "ddp x2 + AMP | none | none | none | none | none | none | not run: no bfloat16 here",
              "DataParallel x4 | 20.0" + published, "DataParallel + apex x4 | 18.0" + published,
              "DistributedDataParallel x4 | 16.0" + published, "DistributedDataParallel + apex x4 | 14.5" + published});
  CHECK(section.rows.at(0).samples == std::vector<double>{0.2, 0.3});
  REQUIRE(section.bars);
  CHECK(section.bars->value == 1);
  CHECK(section.bars->low == std::size_t{2});
  CHECK(section.bars->high == std::size_t{3});
  CHECK(section.bars->less_is_better);
}

TEST_CASE("compare: with --amp every variant gets --amp once") {
  const FakePrograms fakes;
  add_program(fakes);
  dp_bench::StepOptions options = small_step();
  options.rounds = 1;
  options.replicas = 1;
  options.threads = 1;
  options.run.parallel.amp = dp::Amp::bfloat16;
  const dp_bench::Report report = compare_report(options, [](const std::string&) {});
  REQUIRE(report.sections.at(0).rows.size() == 3 + 4);
  for (const std::string& line : fakes.log()) {
    INFO(line);
    CHECK(line.find("--amp bf16") != std::string::npos);
    CHECK(line.find("--amp") == line.rfind("--amp"));
    CHECK_THAT(line, Catch::Contains("--cpu 1 --threads 1"));
  }
}
