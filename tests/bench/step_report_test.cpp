// The reports of dp_bench step and dp_bench scaling.
#include "apps/dp_bench/step.h"

#include <algorithm>

#include "bench/fake_programs.h"
#include "bench/shown_table.h"
#include "support/catch.h"

using namespace dp_bench;
using dp::test::FakePrograms;
using dp::test::shown_table;
using Facts = std::vector<std::pair<std::string, std::string>>;
using Lines = std::vector<std::string>;

namespace {

Measured measured(const std::string& key, std::vector<double> seconds, const std::string& group = "dp",
                  int devices = 1) {
  Measured one;
  one.spec.key = key;
  one.spec.title = "title of " + key;
  one.spec.group = group;
  one.spec.devices = devices;
  one.seconds_per_step = std::move(seconds);
  one.parameter_bytes = 1e6;
  one.bytes_per_device = 3 << 20;
  one.reduce = "master";
  return one;
}

StepResult small() {
  StepResult result;
  result.options.network = {"mlp", {1, 6, 7}, 10};
  result.options.replicas = 2;
  result.options.threads = 4;
  result.options.rounds = 3;
  result.options.seconds = 1.25;
  result.options.batches = 5;
  return result;
}

// Returns whether the ratio of ddp to dp-sharded over these rounds reaches its goal of 1.
std::string met(const std::vector<double>& ratios) {
  StepResult result = small();
  result.options.goals = true;
  result.variants = {measured("dp-sharded", std::vector<double>(ratios.size(), 1.0)), measured("ddp", ratios)};
  return std::get<std::string>(step_report(result).sections.at(1).rows.at(0).cells.at(5));
}

}  // namespace

TEST_CASE("step report: times in ms, throughput, memory, the bytes that the reduction sends, and the reason of a gap") {
  StepResult result = small();
  result.variants = {measured("dp-master", {0.010, 0.012, 0.011}, "dp", 4), measured("ddp", {0.022}, "ddp", 4),
                     measured("torch", {}, "pytorch")};
  result.variants.back().note = "PyTorch is not installed";
  Report report = step_report(result);
  CHECK(report.command == "step");
  REQUIRE(report.sections.size() == 1);
  const Section& section = report.sections[0];
  CHECK(section.key == "variants");
  CHECK(section.title == "Training steps");
  CHECK_THAT(section.text, Catch::StartsWith("ms/step: median of the rounds, with quartiles, minimum and maximum."));
  CHECK(shown_table(section) ==
        Lines{"variant ms_per_step ms_q1 ms_q3 ms_min ms_max images_per_second mib_per_device mb_sent mb_sent_by_one "
              "key",
              "variant | ms/step | quartile | quartile | min | max | img/s | MiB/device | MB sent/step | by busiest | "
              "key",
              "title of dp-master | 11.00 | 10.50 | 11.50 | 10.00 | 12.00 | 5818 | 3 | 6.00 | 3.00 | dp-master",
              "title of ddp | 22.00 | 22.00 | 22.00 | 22.00 | 22.00 | 2909 | 3 | 6.00 | 1.50 | ddp",
              "title of torch | - | - | - | - | - | - | - | - | - | torch | not run: PyTorch is not installed"});
  CHECK(section.rows[0].samples == std::vector<double>{0.010, 0.012, 0.011});
  REQUIRE(section.bars);
  CHECK(section.bars->value == 1);
  CHECK(section.bars->low == std::size_t{2});
  CHECK(section.bars->high == std::size_t{3});
  result.options.inference = true;
  CHECK(step_report(result).sections.at(0).title == "Evaluations");
}

TEST_CASE("step report: every ratio has a goal on CPUs and GPUs, and PyTorch's faster memory format is compared") {
  StepResult result = small();
  for (const auto& [key, seconds] : std::vector<std::pair<std::string, double>>{{"plan", 0.010},
                                                                                {"dp1", 0.010},
                                                                                {"dp-sharded", 0.008},
                                                                                {"dp-virtual", 0.0125},
                                                                                {"ddp", 0.009},
                                                                                {"dp", 0.009},
                                                                                {"torch", 0.014},
                                                                                {"torch-cl", 0.0135},
                                                                                {"torch-compiled", 0.0105},
                                                                                {"torch-dp", 0.010},
                                                                                {"torch-ddp", 0.0088},
                                                                                {"torch-ddp-cl", 0.0092}})
    result.variants.push_back(measured(key, {seconds}));
  const auto row = [](const std::string& theirs, const std::string& ours, const std::string& ratio) {
    return "title of " + theirs + " / title of " + ours + " | " + ratio + " | " + ratio + " | " + ratio;
  };
  CHECK(step_report(result).sections.at(1).key == "ratios");
  CHECK(step_report(result).sections.at(1).title == "Time ratios");
  CHECK(shown_table(step_report(result).sections.at(1)) ==
        Lines{"ratio_of ratio low high", "ratio of | ratio | from | to", row("plan", "dp1", "1.000"),
              row("dp1", "dp-sharded", "1.250"), row("ddp", "dp-sharded", "1.125"), row("dp1", "dp-virtual", "0.800"),
              row("torch-cl", "dp1", "1.350"), row("torch-compiled", "dp1", "1.050"),
              row("torch-dp", "dp-sharded", "1.250"), row("torch-ddp", "dp-sharded", "1.100"),
              row("torch-ddp", "ddp", "0.978"), row("dp1", "dp", "1.111"), row("torch-cl", "dp", "1.500")});
  result.options.goals = true;
  for (const bool gpu : {false, true}) {
    result.options.gpus = gpu ? "0" : "";
    CHECK(shown_table(step_report(result).sections.at(1)) ==
          Lines{"ratio_of ratio low high goal met", "ratio of | ratio | from | to | goal: at least | met",
                row("plan", "dp1", "1.000") + " | 0.990 | yes", row("dp1", "dp-sharded", "1.250") + " | 0.952 | yes",
                row("ddp", "dp-sharded", "1.125") + " | 1.000 | yes",
                row("dp1", "dp-virtual", "0.800") + " | 0.935 | no",
                row("torch-cl", "dp1", "1.350") + (gpu ? " | 1.400 | no" : " | 1.300 | yes"),
                row("torch-compiled", "dp1", "1.050") + (gpu ? " | 1.100 | no" : " | 1.000 | yes"),
                row("torch-dp", "dp-sharded", "1.250") + " | 1.150 | yes",
                row("torch-ddp", "dp-sharded", "1.100") + " | 1.150 | no",
                row("torch-ddp", "ddp", "0.978") + " | 1.150 | no", row("dp1", "dp", "1.111") + " | 1.000 | yes",
                row("torch-cl", "dp", "1.500") + " | 1.300 | yes"});
  }
}

TEST_CASE("step report: if the interval contains the goal, the median decides, and the text states this") {
  CHECK(met({1.0, 1.1, 1.2}) == "yes");
  CHECK(met({0.9, 1.0, 1.2}) == "yes, by the median");
  CHECK(met({0.8, 0.9, 1.0}) == "no, by the median");
  CHECK(met({0.7, 0.8, 0.9}) == "no");
}

TEST_CASE("step report: title and facts have the network, the devices and the slices, and a warning above 0.05 cores") {
  StepResult result = small();
  result.facts = {{"versions", "a 1"}, {"others_cores", "0.051"}, {"idle_programs_cores", "0.9"}};
  result.variants = {measured("dp1", {1})};
  Facts facts{{"rounds", "3, interleaved: one slice per variant"},
              {"slice", "about 1.25 s"},
              {"batches", "5 distinct, used cyclically"},
              {"versions", "a 1"},
              {"others_cores", "0.051"},
              {"idle_programs_cores", "0.9"},
              {"warning", "other processes used 0.051 cores: the results are not reliable"}};
  CHECK(step_report(result).facts == facts);
  CHECK(step_report(result).title == "mlp on 1x6x7, 10 classes, batch 64, 2 CPU replicas, 4 threads in total");
  result.options.steps = 7;
  result.options.replicas = result.options.threads = 1;
  result.options.inference = true;
  result.facts[1].second = facts[4].second = "0.050";
  facts[1].second = "7 steps";
  facts.pop_back();
  CHECK(facts_of(result) == facts);
  CHECK(step_report(result).title ==
        "mlp on 1x6x7, 10 classes, batch 64, evaluation, 1 CPU replica, 1 thread in total");
  result.options.gpus = "0,1";
  CHECK(step_report(result).title == "mlp on 1x6x7, 10 classes, batch 64, evaluation, GPUs 0,1");
}

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
  StepOptions options;
  options.network = {"mlp", {1, 6, 6}, 10};
  options.run.batch_size = 12;
  options.replicas = options.threads = 3;
  options.rounds = 2;
  options.steps = options.warmup = 1;
  options.batches = 5;
  const Report report = measure_scaling(options, [](const std::string&) {});
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
  REQUIRE(report.sections.size() == 1);
  const Section& section = report.sections.front();
  CHECK(section.key == "measured");
  CHECK(section.title == "Measured: one CPU thread per device");
  CHECK(section.text == "Same global batch for every number of devices. Reduction: sharded in dp, all-reduce in ddp.");
  CHECK(shown_table(section) ==
        Lines{"what devices ms_per_step ms_q1 ms_q3 speed_up efficiency images_per_second seconds_per_epoch",
              "what | devices | ms/step | quartile | quartile | speed-up | % of ideal | img/s | s/50k images",
              "dp x1 | 1 | 300.00 | 270.00 | 330.00 | 1.00 | 100 | 40 | 1250.00",
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
}
