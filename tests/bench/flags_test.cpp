// The command line of dp_bench: the limits of every option, and the programs to which it is passed.
#include "apps/dp_bench/flags.h"

#include <cstdlib>
#include <filesystem>
#include <regex>
#include <sstream>

#include "bench/fake_programs.h"
#include "bench/run_bench.h"
#include "dp/device.h"
#include "dp/error.h"
#include "support/catch.h"

using namespace dp::test;
using Lines = std::vector<std::string>;

namespace {

// Empty if the command line is accepted.
std::string refusal(const Lines& words) {
  std::vector<const char*> arguments{"dp_bench"};
  for (const std::string& word : words) arguments.push_back(word.c_str());
  try {
    const bool work = dp_bench::parse_arguments(static_cast<int>(arguments.size()), arguments.data()).has_value();
    return work ? "" : "nothing to do";
  } catch (const dp::Error& error) {
    CHECK(error.code() == dp::ErrorCode::usage);
    return error.what();
  }
}

struct Limits {
  std::string commands, option, below, lowest, highest, above, what;
};

const std::vector<Limits> kLimits{
    {"step scaling", "--input", "0", "1", "4096", "4097", "a whole number from 1 to 4096"},
    {"step ops scaling pipeline", "--classes", "0", "1", "100000", "100001", "a whole number from 1 to 100000"},
    {"step scaling comm", "--num-gpus", "0", "1", "1024", "1025", "a whole number from 1 to 1024"},
    {"step ops comm scaling pipeline", "--rounds", "0", "1", "100000", "100001", "a whole number from 1 to 100000"},
    {"step scaling pipeline", "--steps", "0", "1", "1000000", "1000001", "a whole number from 1 to 1000000"},
    {"step scaling pipeline", "--seconds", "0.0009", "0.001", "3600", "3600.1", "a number from 0.001 to 3600"},
    {"step scaling pipeline", "--warmup", "0", "1", "100000", "100001", "a whole number from 1 to 100000"},
    {"step scaling pipeline", "--batches", "0", "1", "100000", "100001", "a whole number from 1 to 100000"},
    {"step scaling pipeline", "--timeout", "0.9", "1", "86400", "86401", "a number from 1 to 86400"},
    {"step scaling", "--cpu", "0", "1", "256", "257", "a whole number from 1 to 256"},
    {"step scaling", "--replicas-per-device", "0", "1", "64", "65", "a whole number from 1 to 64"},
    {"step ops comm scaling pipeline", "--threads", "0", "1", "1024", "1025", "a whole number from 1 to 1024"},
    {"ops", "--gpu", "-1", "0", "1023", "1024", "a whole number from 0 to 1023"},
    {"ops", "--steps", "0", "1", "100000", "100001", "a whole number from 1 to 100000"},
    {"comm", "--stepfactor", "1.09", "1.1", "1000000", "1000001", "a number from 1.1 to 1000000"},
    {"comm pipeline", "--cpu", "1", "2", "256", "257", "a whole number from 2 to 256"},
    {"comm", "--seconds", "0.00009", "0.0001", "60", "60.1", "a number from 0.0001 to 60"},
    {"pipeline", "--split-sizes", "0", "1", "1048576", "1048577", "a whole number from 1 to 1048576"}};

struct Choice {
  std::string command, option;
  Lines names;
};

const std::vector<Choice> kChoices{
    {"step", "--images-on", {"host", "device"}},
    {"scaling", "--images-on", {"host", "device"}},
    {"pipeline", "--schedules", {"none", "gpipe", "1f1b", "zb-h1"}},
    {"comm",
     "--collectives",
     {"all_reduce", "reduce", "broadcast", "reduce_scatter", "all_gather", "all_gather_parts", "gather", "scatter"}}};

}  // namespace

TEST_CASE("dp_bench accepts every numeric option from its lowest to its highest value") {
  for (const Limits& limits : kLimits) {
    std::istringstream commands(limits.commands);
    for (std::string command; commands >> command;) {
      INFO(command << ' ' << limits.option);
      for (const std::string& good : {limits.lowest, limits.highest})
        CHECK(refusal({command, limits.option + "=" + good}).empty());
      for (const std::string& bad : {limits.below, limits.above})
        CHECK_THAT(refusal({command, limits.option + "=" + bad}),
                   Catch::Contains("'" + bad + "' is not " + limits.what));
    }
  }
}

TEST_CASE("dp_bench accepts the names of each choice, and a list in one word or in several") {
  for (const Choice& choice : kChoices) {
    INFO(choice.command << ' ' << choice.option);
    std::string all;
    for (const std::string& name : choice.names) {
      CHECK(refusal({choice.command, choice.option, name}).empty());
      all += (all.empty() ? "" : ", ") + name;
    }
    CHECK_THAT(refusal({choice.command, choice.option, "other"}), Catch::Contains("'other' is not one of " + all));
  }
  CHECK(refusal({"pipeline", "--schedules", "gpipe,1f1b", "--split-sizes", "1,4"}).empty());
  CHECK(refusal({"step", "--variants", "plan,dp1", "--input", "3,32,32"}).empty());
  CHECK(refusal({"comm", "--collectives", "gather,scatter", "--communicators", "host,mpi"}).empty());
}

TEST_CASE("dp_bench step passes its options, the plugin folder and the first program's inputs to the programs") {
  if (std::getenv("DP_PLUGIN_PATH") != nullptr) DP_SKIP("DP_PLUGIN_PATH is set");
  const FakePrograms fakes;
  fakes.add("bench_step", R"sh(
log "$* $DP_PLUGIN_PATH"
say ready
while read -r command; do log "$command"; say done seconds=0.5; done
)sh");
  fakes.add("pytorch_step.py", R"sh(
log "$*"
say ready
while read -r command; do log "$command"; say done seconds=0.25; done
)sh");
  const auto out = run_for_json(
      "step --model mlp --input 1,6,6 --classes 7 -b 12 --cpu 2 --threads 4 --batches 3 --rounds 2 --steps 6 "
      "--warmup 4 --python /bin/sh --images-on device --exact-conv --timeout 60 --variants dp1,torch --inference");
  const std::string folder = std::filesystem::canonical(DP_TRAIN_PATH).parent_path().string();
  const std::string network =
      "--model mlp --input 1,6,6 --classes 7 --batch 12 --batches 3 --images-on device --inference ";
  CHECK(fakes.log() == Lines{network + "--cpu 1 --threads 4 --variant dp --exact-conv --save-inputs FILE " + folder,
                             network + "--variant single --memory-format contiguous --threads 4 --inputs FILE", "run 4",
                             "run 4", "run 6", "run 6", "run 6", "run 6"});
  CHECK(out.at("title") == "mlp on 1x6x6, 7 classes, batch 12, evaluation, 2 CPU replicas, 4 threads in total");
  CHECK(out.at("facts").at("rounds") == "2, interleaved: one slice per variant");
  CHECK(out.at("facts").at("slice") == "6 steps");

  std::filesystem::remove(fakes.path() + "/log");
  const BenchOutcome other = run_shell("DP_PLUGIN_PATH=/elsewhere " DP_BENCH_PATH
                                       " step --model mlp --cpu 1 --rounds 1 --steps 1 --warmup 1 --variants dp1");
  INFO(other.text);
  CHECK(other.code == 0);
  CHECK_THAT(fakes.log().at(0), Catch::EndsWith(" /elsewhere"));
}

TEST_CASE("the facts of every report begin with the command, the date, the version and the processor") {
  const FakePrograms fakes;
  fakes.add("bench_ops", "say rates; say ready; while read -r command; do say done seconds=; done");
  const auto out = run_for_json("ops --cpu --threads 3 --model mlp --rounds 4 --steps 2 -b 5 --without-pytorch");
  const auto& facts = out.at("facts");
  CHECK(facts.at("command").get<std::string>().starts_with(
      "dp_bench ops --cpu --threads 3 --model mlp --rounds 4 --steps 2 -b 5 --without-pytorch --json "));
  CHECK(std::regex_match(facts.at("date").get<std::string>(), std::regex(R"(20\d\d-\d\d-\d\d \d\d:\d\d UTC)")));
  CHECK(std::regex_match(facts.at("dp").get<std::string>(), std::regex(R"(\d+\.\d+\.\d+, commit \S+)")));
  std::string model = "unknown";
  for (const std::string& line : lines_of(read_text("/proc/cpuinfo")))
    if (model == "unknown" && line.starts_with("model name")) model = line.substr(line.find(": ") + 2);
  CHECK(facts.at("processor") == model + ", " + to_string(dp::available_cores()));
  CHECK(facts.at("rounds") == "4 of 2 steps");
  CHECK_THAT(out.at("title").get<std::string>(), Catch::EndsWith(", batch 5, 3 threads"));
  const BenchOutcome text = run_bench("ops --cpu --model mlp --rounds 1 --without-pytorch");
  CHECK(text.code == 0);
  CHECK_THAT(text.text, Catch::Contains("Ops of mlp on ") && Catch::Contains("\n  command: dp_bench ops --cpu "));
}

TEST_CASE("a measured program that fails ends dp_bench with exit code 4 and its message") {
  const FakePrograms fakes;
  fakes.add("bench_ops", "say rates; say error 'message=out of luck'");
  const BenchOutcome outcome = run_bench("ops --cpu --model mlp --without-pytorch");
  CHECK(outcome.code == 4);
  CHECK(outcome.text == "dp_bench: error: out of luck\n");
}

TEST_CASE("dp_bench stops a program that does not answer within --timeout seconds") {
  const FakePrograms fakes;
  fakes.add("bench_step", "read -r command; exit");
  const auto out = run_for_json("step --model mlp --cpu 1 --rounds 1 --steps 1 --timeout 1 --variants dp1");
  CHECK(out.at("sections").at(0).at("rows").at(0).at("note") == "bench_step did not answer within 1 s");
}

TEST_CASE("dp_bench comm and pipeline pass their options to the programs") {
  const FakePrograms fakes;
  fakes.add("bench_comm", "log \"$*\"");
  fakes.add("bench_step", R"sh(
log "$*"
say ready
while read -r command; do log "$command"; say done seconds=1; done
)sh");
  run_for_json(
      "comm -b 1K -e 2K -f 4 --cpu 3 --threads 2 --rounds 6 --seconds 0.5 --communicators host "
      "--collectives gather,scatter");
  run_for_json(
      "pipeline --model mlp --input 1,6,6 --classes 7 -b 12 --pipeline-stages 2 --cpu 2 --threads 4 "
      "--schedules gpipe --split-sizes 3 --rounds 1 --steps 6 --warmup 3 --batches 5 --exact-conv");
  const std::string network = "--model mlp --input 1,6,6 --classes 7 --batch 12 --batches 5 --images-on host --cpu ";
  CHECK(fakes.log() ==
        Lines{"--begin 1024 --end 2048 --factor 4.000 --rounds 6 --seconds 0.5000 --threads 2 --comm host --cpu 3 "
              "--collectives gather,scatter",
              network + "1 --threads 2 --variant dp --exact-conv --micro-batches 1 --save-inputs FILE",
              network + "2 --threads 2 --variant dp --exact-conv --micro-batches 1 --stages 2 --schedule none",
              network + "2 --threads 2 --variant dp --exact-conv --micro-batches 4 --stages 2 --schedule gpipe",
              "run 3", "run 3", "run 3", "run 6", "run 6", "run 6"});
}
