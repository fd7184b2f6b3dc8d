// dp_bench scaling: its measured table over a fake program, and its modelled tables.
#include "apps/dp_bench/scaling.h"

#include <algorithm>

#include "apps/dp_bench/model/cpu_model.h"
#include "apps/dp_bench/model/scaling_model.h"
#include "bench/fake_programs.h"
#include "bench/shown_table.h"
#include "support/catch.h"

using namespace dp::test;
using dp_bench::Report;
using dp_bench::Section;
using Lines = std::vector<std::string>;

namespace {

void tell(const std::string&) {}

const Lines kHead{"what devices ms_per_step ms_q1 ms_q3 speed_up efficiency images_per_second seconds_per_epoch",
                  "what | devices | ms/step | quartile | quartile | speed-up | % of ideal | img/s | s/50k images"};

Lines rows_of(const Section& section) {
  const Lines all = shown_table(section);
  return {all.begin() + 2, all.end()};
}

Report model_only() {
  dp_bench::ScalingOptions options;
  options.measure = false;
  return scaling_report(options, tell);
}

}  // namespace

TEST_CASE("scaling: dp with 1 to N replicas and ddp with 2 to N ranks are measured, with the same global batch") {
  const FakePrograms fakes;
  fakes.add("bench_step", R"sh(
log "$*"
n=0
case "$*" in *'--cpu 1 '*) ms=120;; *'--cpu 2 '*) ms=60;; *) ms=40;; esac
case "$*" in *'--variant ddp'*) ms=75;; esac
case "$*" in *'--rank 0'*) say listening port=99;; esac
case "$*" in *'--cpu 3 '*'--variant ddp'*) say error 'message=no ranks'; exit 1;; esac
say ready
while read -r command; do
  n=$((n + 1))
  say done seconds=$((n * ms))e-3
done
)sh");
  dp_bench::ScalingOptions options;
  options.step.network = {"mlp", {1, 6, 6}, 10};
  options.step.run.batch_size = 12;
  options.step.replicas = options.step.threads = 3;
  options.step.rounds = 2;
  options.step.steps = options.step.warmup = 1;
  options.step.batches = 5;
  options.modelled_batch = 64;
  const Report report = scaling_report(options, tell);
  const std::string network = "--model mlp --input 1,6,6 --classes 10 --batch 12 --batches 5 --images-on host --cpu ";
  Lines log = fakes.log();
  std::ranges::sort(log);
  CHECK(log == Lines{network + "1 --threads 1 --variant dp --save-inputs FILE",
                     network + "2 --threads 1 --variant ddp --rank 0 --ranks 2 --port 0",
                     network + "2 --threads 1 --variant ddp --rank 1 --ranks 2 --port 99",
                     network + "2 --threads 1 --variant dp",
                     network + "3 --threads 1 --variant ddp --rank 0 --ranks 3 --port 0",
                     network + "3 --threads 1 --variant ddp --rank 1 --ranks 3 --port 99",
                     network + "3 --threads 1 --variant ddp --rank 2 --ranks 3 --port 99",
                     network + "3 --threads 1 --variant dp"});
  CHECK(report.command == "scaling");
  CHECK(report.title == "Scaling of mlp on 1x6x6, global batch 12");
  CHECK(report.facts.front() == std::pair<std::string, std::string>{"rounds", "2, interleaved: one slice per variant"});
  Lines keys;
  for (const Section& section : report.sections) keys.push_back(section.key);
  CHECK(keys == Lines{"measured", "modelled1", "modelled2", "modelled3", "modelled4", "hosts", "server"});
  const Section& section = report.sections.front();
  CHECK(section.title == "Measured: one CPU thread per device");
  CHECK(section.text == "Same global batch for every number of devices. Reduction: sharded in dp, all-reduce in ddp.");
  CHECK(shown_table(section) ==
        Lines{kHead[0], kHead[1], "dp x1 | 1 | 300.00 | 270.00 | 330.00 | 1.00 | 100 | 40 | 1250.00",
              "dp x2 | 2 | 150.00 | 135.00 | 165.00 | 2.00 | 100 | 80 | 625.00",
              "dp x3 | 3 | 100.00 | 90.00 | 110.00 | 3.00 | 100 | 120 | 416.67",
              "ddp x2 | 2 | 187.50 | 168.75 | 206.25 | 1.60 | 80 | 64 | 781.25",
              "ddp x3 | 3 | none | none | none | none | none | none | none | not run: no ranks"});
  CHECK(section.rows.at(0).samples == std::vector<double>{0.24, 0.36});
  CHECK(section.rows.at(4).note == "no ranks");
  REQUIRE(section.bars);
  CHECK(section.bars->value == 2);
  CHECK(section.bars->low == std::size_t{3});
  CHECK(section.bars->high == std::size_t{4});
  CHECK(report.sections.at(1).title == "H200, NVSwitch: ResNet18 on CIFAR, global batch 64");
  CHECK(rows_of(report.sections.back()).front().starts_with("global batch 64 x1 | 1 | "));
}

// The figures of these tables were computed by a second program with the same formulas.
TEST_CASE("scaling: modelled GPUs have every strategy, for two devices up to as many as there are") {
  const Report report = model_only();
  CHECK(report.title == "Scaling of ResNet18 on CIFAR, modelled");
  CHECK(report.facts.empty());
  REQUIRE(report.sections.size() == 6);
  const Section& switched = report.sections[0];
  CHECK(switched.key == "modelled1");
  CHECK(switched.title == "H200, NVSwitch: ResNet18 on CIFAR, global batch 1024");
  CHECK(switched.text == constants_of(dp_bench::known_hardware()[0]));
  CHECK(shown_table(switched) ==
        Lines{kHead[0], kHead[1], "one device x1 | 1 | 11.35 | - | - | 1.00 | 100 | 90190 | 0.55 | modelled",
              "plain copies to and from the master x2 | 2 | 6.29 | - | - | 1.80 | 90 | 162766 | 0.31 | modelled",
              "plain copies to and from the master x4 | 4 | 4.43 | - | - | 2.56 | 64 | 231338 | 0.22 | modelled",
              "plain copies to and from the master x8 | 8 | 4.85 | - | - | 2.34 | 29 | 211257 | 0.24 | modelled",
              "dp without overlap x2 | 2 | 6.09 | - | - | 1.87 | 93 | 168282 | 0.30 | modelled",
              "dp without overlap x4 | 4 | 3.32 | - | - | 3.42 | 85 | 308192 | 0.16 | modelled",
              "dp without overlap x8 | 8 | 1.95 | - | - | 5.83 | 73 | 525629 | 0.10 | modelled",
              "dp master x2 | 2 | 5.89 | - | - | 1.93 | 96 | 173880 | 0.29 | modelled",
              "dp master x4 | 4 | 3.13 | - | - | 3.63 | 91 | 327239 | 0.15 | modelled",
              "dp master x8 | 8 | 1.76 | - | - | 6.45 | 81 | 581888 | 0.09 | modelled",
              "dp sharded x2 | 2 | 5.84 | - | - | 1.95 | 97 | 175424 | 0.29 | modelled",
              "dp sharded x4 | 4 | 3.07 | - | - | 3.70 | 93 | 333888 | 0.15 | modelled",
              "dp sharded x8 | 8 | 1.69 | - | - | 6.71 | 84 | 605118 | 0.08 | modelled",
              "ddp x2 | 2 | 5.84 | - | - | 1.95 | 97 | 175436 | 0.29 | modelled",
              "ddp x4 | 4 | 3.08 | - | - | 3.69 | 92 | 332995 | 0.15 | modelled",
              "ddp x8 | 8 | 1.70 | - | - | 6.69 | 84 | 603231 | 0.08 | modelled"});
  REQUIRE(switched.bars);
  CHECK(switched.bars->value == 2);
  CHECK_FALSE(switched.bars->low.has_value());
  CHECK_FALSE(switched.bars->high.has_value());
  const Section& bridge = report.sections[3];
  CHECK(bridge.title == "RTX 2080 Ti, NVLink bridge: ResNet18 on CIFAR, global batch 1024");
  CHECK(rows_of(bridge) ==
        Lines{"one device x1 | 1 | 500.72 | - | - | 1.00 | 100 | 2045 | 24.45 | modelled",
              "plain copies to and from the master x2 | 2 | 255.97 | - | - | 1.96 | 98 | 4001 | 12.50 | modelled",
              "dp without overlap x2 | 2 | 255.97 | - | - | 1.96 | 98 | 4001 | 12.50 | modelled",
              "dp master x2 | 2 | 252.19 | - | - | 1.99 | 99 | 4060 | 12.31 | modelled",
              "dp sharded x2 | 2 | 251.21 | - | - | 1.99 | 100 | 4076 | 12.27 | modelled",
              "ddp x2 | 2 | 251.78 | - | - | 1.99 | 99 | 4067 | 12.29 | modelled"});
}

TEST_CASE("scaling: modelled hosts have two networks and up to eight hosts of eight GPUs") {
  const Section section = model_only().sections.at(4);
  CHECK(section.key == "hosts");
  CHECK(section.title == "Several hosts of 8 x H200, NVSwitch, ddp, 256 images per GPU");
  CHECK(section.text.starts_with(constants_of(dp_bench::known_hardware()[0]) + " Assumed between hosts: "));
  CHECK(shown_table(section) ==
        Lines{kHead[0], kHead[1], "1 hosts, 100 Gbit/s | 8 | 3.08 | - | - | 7.93 | 99 | 664722 | 0.08 | modelled",
              "2 hosts, 100 Gbit/s | 16 | 5.31 | - | - | 9.20 | 57 | 771398 | 0.06 | modelled",
              "4 hosts, 100 Gbit/s | 32 | 7.11 | - | - | 13.75 | 43 | 1152981 | 0.04 | modelled",
              "8 hosts, 100 Gbit/s | 64 | 8.00 | - | - | 24.42 | 38 | 2047317 | 0.02 | modelled",
              "1 hosts, 400 Gbit/s | 8 | 3.08 | - | - | 7.93 | 99 | 664722 | 0.08 | modelled",
              "2 hosts, 400 Gbit/s | 16 | 3.17 | - | - | 15.42 | 96 | 1292655 | 0.04 | modelled",
              "4 hosts, 400 Gbit/s | 32 | 3.20 | - | - | 30.49 | 95 | 2556343 | 0.02 | modelled",
              "8 hosts, 400 Gbit/s | 64 | 3.29 | - | - | 59.39 | 93 | 4979615 | 0.01 | modelled"});
}

TEST_CASE("scaling: the modelled CPU server has 1 to 64 replicas of a fixed batch, and of fixed shards") {
  const Section section = model_only().sections.at(5);
  CHECK(section.key == "server");
  CHECK(section.title == "64 cores of a Zen 4 server: ResNet18 on CIFAR");
  CHECK(section.text.starts_with(constants_of(dp_bench::known_server()) + " Convolutions scale with the cores. "));
  CHECK(shown_table(section) ==
        Lines{"what replicas ms_per_step convolutions_ms passes_ms exchange_ms speed_up efficiency images_per_second",
              "what | replicas | ms/step | convolutions | passes | exchange | speed-up | % of ideal | img/s",
              "global batch 1024 x1 | 1 | 18108.0 | 17047.0 | 1051.9 | 9.0 | 1.0 | 100 | 57 | modelled",
              "global batch 1024 x2 | 2 | 9056.9 | 8523.5 | 526.0 | 7.4 | 2.0 | 100 | 113 | modelled",
              "global batch 1024 x4 | 4 | 4530.4 | 4261.8 | 263.0 | 5.6 | 4.0 | 100 | 226 | modelled",
              "global batch 1024 x8 | 8 | 2267.1 | 2130.9 | 131.5 | 4.7 | 8.0 | 100 | 452 | modelled",
              "global batch 1024 x16 | 16 | 1141.2 | 1065.5 | 71.1 | 4.6 | 15.9 | 99 | 897 | modelled",
              "global batch 1024 x32 | 32 | 614.1 | 534.6 | 71.1 | 8.5 | 29.5 | 92 | 1667 | modelled",
              "global batch 1024 x64 | 64 | 358.1 | 270.8 | 71.1 | 16.2 | 50.6 | 79 | 2859 | modelled",
              "32 images per replica x1 | 1 | 574.6 | 532.8 | 32.9 | 9.0 | 1.0 | 100 | 56 | modelled",
              "32 images per replica x2 | 2 | 573.0 | 532.8 | 32.9 | 7.4 | 2.0 | 99 | 112 | modelled",
              "32 images per replica x4 | 4 | 571.3 | 532.8 | 32.9 | 5.6 | 4.0 | 99 | 224 | modelled",
              "32 images per replica x8 | 8 | 570.4 | 532.8 | 32.9 | 4.7 | 7.9 | 99 | 449 | modelled",
              "32 images per replica x16 | 16 | 572.9 | 532.8 | 35.5 | 4.6 | 15.8 | 99 | 894 | modelled",
              "32 images per replica x32 | 32 | 614.1 | 534.6 | 71.1 | 8.5 | 29.5 | 92 | 1667 | modelled",
              "32 images per replica x64 | 64 | 699.4 | 541.1 | 142.2 | 16.2 | 51.8 | 81 | 2928 | modelled"});
}

TEST_CASE("scaling: the constants of each model are written under its table") {
  CHECK(constants_of(dp_bench::known_hardware().at(0)) ==
        "Constants: 790.0 TFLOP/s and 4.30 TB/s, of which kernels reach 60 % and 85 %; at least 2 us per kernel; ring "
        "370 GB/s; 18 us per collective of eight devices; compute slows by 8 % of a collective's time; plain copies "
        "200 GB/s; activations of 2 bytes (mixed precision on tensor cores; not calibrated by measurements of dp); one "
        "kernel per direction for normalisation, addition and ReLU; float32 gradients and weights in buckets of 4 MB.");
  CHECK(constants_of(dp_bench::known_hardware().at(3)) ==
        "Constants: 13.4 TFLOP/s and 0.62 TB/s, of which kernels reach 60 % and 85 %; at least 6 us per kernel; ring "
        "21 GB/s; 25 us per collective of eight devices; compute slows by 5 % of a collective's time; plain copies "
        "21 GB/s; activations of 4 bytes; one kernel per pass; float32 gradients and weights in buckets of 4 MB.");
  CHECK(constants_of(dp_bench::known_server()) ==
        "Constants: 200 GFLOP/s per core, at the clock of a single busy core; 25 GB/s for one core, 370 GB/s for all; "
        "10 us per barrier; float32; one replica of one thread per core.");
}
