// Tests parse_command() and complete() with a command line, a config file and a recorded run.
#include "dp_train/command.h"

#include <filesystem>
#include <set>

#include "apps/run_program.h"
#include "dp/error.h"
#include "dp_train/devices.h"
#include "dp_train/trainer_options.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

namespace {

using namespace dp::test;
using dp_train::Command;

Command parsed(Words words) {
  words.insert(words.begin(), "dp_train");
  std::vector<const char*> pointers;
  for (const std::string& word : words) pointers.push_back(word.c_str());
  const auto command = dp_train::parse_command(static_cast<int>(pointers.size()), pointers.data());
  REQUIRE(command);
  return *command;
}

// The options of a run on two CPU replicas.
dp::TrainerOptions options_of(const Command& command, int replicas = 2) {
  return dp_train::trainer_options(command, dp::cpus(replicas), nullptr);
}

dp::TrainerOptions options_of(const std::string& toml, Words words) {
  const TemporaryFolder temp;
  write_text(temp / "a.toml", toml);
  return options_of(parsed(Words{"--config", temp / "a.toml"} + words));
}

TEST_CASE("an option on the command line replaces an equivalent option of a config file") {
  CHECK(options_of("batch-size-per-gpu = 4\n", {"-b", "16"}).batch_size == 16);
  CHECK(options_of("batch-size = 16\n", {"--batch-size-per-gpu", "4"}).batch_size == 8);
  CHECK(options_of("batch-size-per-gpu = 4\n", {}).batch_size == 8);
  CHECK(options_of("sync-bn = true\n", {"--bn", "master"}).parallel.batch_norm == dp::BatchNormMode::master);
  CHECK(options_of("sync-bn = true\n", {}).parallel.batch_norm == dp::BatchNormMode::sync);
  CHECK(options_of("bn = \"pooled\"\n", {"--sync-bn"}).parallel.batch_norm == dp::BatchNormMode::sync);
  CHECK(options_of("no-graphs = true\n", {"--graphs", "auto"}).parallel.graphs == dp::Graphs::automatic);
  CHECK(options_of("graphs = \"auto\"\n", {"--no-graphs"}).parallel.graphs == dp::Graphs::never);
}

TEST_CASE("a file sets exactly the options that a run records, in any of their forms") {
  const TemporaryFolder temp;
  dp::TrainerOptions options;
  options.optimizer = dp::AdamW{};
  const auto value_of = [](const dp::OptionText& row) -> std::string {
    switch (row.accepts.kind) {
      case dp::Accepts::Kind::flag: return "true";
      case dp::Accepts::Kind::text: return "\"" + (row.accepts.names.empty() ? "x" : row.accepts.names.front()) + "\"";
      default: return "1";
    }
  };
  std::set<std::string> settable{
      "model",      "data-path",          "input",      "classes",   "images",  "classes-from",
      "bad-images", "val-split",          "image-size", "crop-pct",  "mean",    "std",
      "no-eval",    "batch-size-per-gpu", "sync-bn",    "no-graphs", "lr-scale"};
  for (const auto& row : dp::run_options().rows())
    if (row.recorded) settable.insert(row.name);
  int refused = 0;
  for (const auto& row : dp_train::command_table().rows()) {
    write_text(temp / "a.toml", row.name + " = " + value_of(row) + "\n");
    std::string message;
    try {
      parsed({"--config", temp / "a.toml", "--model", "mlp"});
    } catch (const dp::Error& error) {
      message = error.what();
    }
    INFO(row.name << ": " << message);
    const bool is_refused = message.find(": " + row.name + " does not belong in a file") != std::string::npos;
    CHECK(is_refused != settable.contains(row.name));
    if (is_refused) CHECK_THAT(message, Catch::EndsWith("; give --" + row.name + " on the command line"));
    refused += is_refused;
  }
  CHECK(refused > 20);
}

TEST_CASE("a checkpoint sets no option that chooses where to write or what to do") {
  const Command command = dp_train::complete(parsed({"--resume", "run"}), {{"summary", {"/elsewhere"}},
                                                                           {"trace", {"/elsewhere"}},
                                                                           {"output-dir", {"/elsewhere"}},
                                                                           {"experiment", {"elsewhere"}},
                                                                           {"save-config", {"/elsewhere"}},
                                                                           {"engine", {"ddp"}},
                                                                           {"master-addr", {"example.org"}},
                                                                           {"evaluate", {"true"}},
                                                                           {"resume", {"/elsewhere"}},
                                                                           {"seed", {"7"}}});
  CHECK(command.trainer.parallel.seed == 7);
  CHECK((command.trainer.summary_file.empty() && command.trainer.trace_file.empty()));
  CHECK((!command.output_dir && !command.experiment && !command.save_config && !command.master_addr));
  CHECK((command.engine == "dp" && !command.evaluate && command.trainer.resume == "run"));
}

TEST_CASE("a flag that sets another option has no effect if it is false") {
  CHECK(options_of(parsed({"--sync-bn"})).parallel.batch_norm == dp::BatchNormMode::sync);
  CHECK(options_of(parsed({"--sync-bn=false"})).parallel.batch_norm == dp::BatchNormMode::master);
  CHECK(options_of(parsed({"--no-graphs"})).parallel.graphs == dp::Graphs::never);
  CHECK(options_of(parsed({"--no-graphs=false"})).parallel.graphs == dp::Graphs::automatic);
}

TEST_CASE("the command records the source of each option, under the name of the option that it sets") {
  const TemporaryFolder temp;
  const std::string file = temp / "a.toml";
  write_text(file, "momentum = 0.8\nlr = 0.02\n");
  const Command command = parsed({"--config", file, "--batch-size-per-gpu", "4", "--lr", "0.1", "--lr-scale", "linear",
                                  "--sync-bn", "--no-graphs"});
  CHECK(command.trainer.given_by == std::map<std::string, std::string>{{"batch-size", "command line"},
                                                                       {"bn", "command line"},
                                                                       {"config", "command line"},
                                                                       {"graphs", "command line"},
                                                                       {"lr", "command line"},
                                                                       {"momentum", file}});
}

TEST_CASE("options for another kind of device are reported, unless they are false or in a config file") {
  using Only = std::vector<std::pair<std::string, dp::DeviceKind>>;
  const TemporaryFolder temp;
  write_text(temp / "a.toml", "no-autotune = true\n");
  const Command command =
      parsed({"--config", temp / "a.toml", "--tf32", "--no-graphs=false", "--threads-per-replica", "2"});
  CHECK(command.given_for_one_kind ==
        Only{{"threads-per-replica", dp::DeviceKind::cpu}, {"tf32", dp::DeviceKind::cuda}});
  CHECK(dp_train::without_effect(command, dp::DeviceKind::cuda) == "--threads-per-replica has no effect on GPUs");
  CHECK(dp_train::without_effect(command, dp::DeviceKind::cpu) == "--tf32 has no effect on the CPU");
  const Command both = parsed({"--tf32", "--no-graphs"});
  CHECK(dp_train::without_effect(both, dp::DeviceKind::cpu) == "--tf32, --no-graphs have no effect on the CPU");
  CHECK(dp_train::without_effect(both, dp::DeviceKind::cuda).empty());
}

TEST_CASE("the options of the data are recorded, with the whole path of the folder") {
  const auto recorded = [](const Words& words) { return parsed(words).trainer.record; };
  using Record = std::vector<std::pair<std::string, dp::OptionValue>>;
  const std::string here = std::filesystem::current_path().string();
  CHECK(recorded({"--data-path", "a/../b"}) == Record{{"data-path", here + "/b"},
                                                      {"input", {}},
                                                      {"classes", {}},
                                                      {"images", {}},
                                                      {"bad-images", {}},
                                                      {"val-split", {}},
                                                      {"image-size", {}},
                                                      {"crop-pct", {}},
                                                      {"mean", {}},
                                                      {"std", {}}});
  CHECK(recorded({"--dataset", "synthetic", "--data-path", "/c", "--input", "3,8,8", "--classes", "7", "--images",
                  "9"}) == Record{{"data-path", std::string("/c")},
                                  {"input", std::string("3,8,8")},
                                  {"classes", std::int64_t{7}},
                                  {"images", std::int64_t{9}},
                                  {"bad-images", {}},
                                  {"val-split", {}},
                                  {"image-size", {}},
                                  {"crop-pct", {}},
                                  {"mean", {}},
                                  {"std", {}}});
}

TEST_CASE("underscores in an option's name are read as dashes, and its value is unchanged") {
  const Command command = parsed({"--batch_size=8", "--experiment=a_b", "--output_dir", "c_d"});
  CHECK(command.trainer.batch_size == 8);
  CHECK(command.experiment == "a_b");
  CHECK(command.output_dir == "c_d");
}

TEST_CASE("a resume that repeats a recorded option keeps the recorded options that depend on it") {
  const std::vector<dp::RecordedOption> recorded{
      {"lr-scheduler", {"step"}}, {"lr-gamma", {"0.5"}}, {"batch-size", {"16"}}, {"option-of-an-old-version", {"1"}}};
  const auto resumed = [&](const Words& words) {
    return options_of(dp_train::complete(parsed(Words{"--resume", "run"} + words), recorded));
  };
  const dp::TrainerOptions same = resumed({"--lr-scheduler", "step"});
  CHECK(same.schedule.kind == dp::ScheduleKind::step);
  CHECK(same.schedule.gamma == 0.5);
  CHECK(same.batch_size == 16);
  const dp::TrainerOptions other = resumed({"--lr-scheduler", "multistep", "--batch-size-per-gpu", "3"});
  CHECK(other.schedule.kind == dp::ScheduleKind::multistep);
  CHECK(other.schedule.gamma == 0.1);
  CHECK(other.batch_size == 6);
  CHECK_THROWS_WITH(resumed({"--opt-eps", "0.1"}),
                    Catch::StartsWith("--opt-eps requires --optimizer adamw") && Catch::EndsWith("--optimizer is sgd"));
}

TEST_CASE("a recorded split is dropped if the resumed run cannot use it") {
  const auto resumed = [](const Words& words, const std::vector<dp::RecordedOption>& recorded, int replicas) {
    return options_of(dp_train::complete(parsed(Words{"--resume", "run"} + words), recorded), replicas);
  };
  const std::vector<dp::RecordedOption> weights{{"split", {"3:1"}}}, measured{{"split", {"auto"}}};
  CHECK(resumed({}, weights, 2).parallel.split_weights.size() == 2);
  CHECK(resumed({}, weights, 3).parallel.split_weights.empty());
  CHECK(resumed({"--logical-shards", "2"}, weights, 2).parallel.split_weights.empty());
  CHECK(resumed({"--logical-shards", "1"}, weights, 2).parallel.split_weights.empty());
  CHECK(resumed({"--pipeline-stages", "2"}, weights, 2).parallel.split_weights.empty());
  CHECK(resumed({"--split", "3:1"}, weights, 3).parallel.split_weights.size() == 2);  // refused later
  CHECK(resumed({}, measured, 2).measure_split);
  CHECK_FALSE(resumed({"--deterministic"}, measured, 2).measure_split);
  CHECK_FALSE(resumed({"--logical-shards", "2"}, measured, 2).measure_split);
  CHECK_FALSE(resumed({"--pipeline-stages", "2"}, measured, 2).measure_split);
}

TEST_CASE("speeds are measured for training only") {
  CHECK(options_of(parsed({"--split", "auto"})).measure_split);
  for (const Words& words : {Words{"--print-plan"}, Words{"--evaluate", "--init", "a"}, Words{"estimate-memory"}})
    CHECK_FALSE(options_of(parsed(Words{"--split", "auto"} + words)).measure_split);
}

TEST_CASE("the batch size per replica counts pipelines, not devices") {
  const Words words{"--batch-size-per-gpu", "4"};
  CHECK(options_of(parsed(words), 6).batch_size == 24);
  CHECK(options_of(parsed(words + Words{"--pipeline-stages", "3"}), 6).batch_size == 8);
}

TEST_CASE("training options are refused with --evaluate, and invalid names of experiments are refused") {
  const Words evaluate{"--evaluate", "--init", "a"};
  CHECK_NOTHROW(options_of(parsed(evaluate)));
  CHECK_NOTHROW(options_of(parsed({"--trace", "t.json", "--profile"})));
  CHECK_THROWS_WITH(options_of(parsed({"--evaluate"})),
                    "--evaluate requires weights; give --init FILE or --resume PATH");
  CHECK_THROWS_WITH(options_of(parsed(evaluate + Words{"--trace", "t.json"})),
                    "--trace records training steps; remove --evaluate");
  CHECK_THROWS_WITH(options_of(parsed(evaluate + Words{"--profile"})),
                    "--profile measures training steps; remove --evaluate");
  for (const char* good : {"a", "...", ".a", "a b"}) CHECK_NOTHROW(options_of(parsed({"--experiment", good})));
  for (const char* bad : {"", ".", "..", "a/b", "/"})
    CHECK_THROWS_WITH(
        options_of(parsed({"--experiment", bad})),
        "--experiment '" + std::string(bad) + "' is not a plain name; leave out slashes and control characters");
}

TEST_CASE("option --resume auto is allowed with --init and with each option that sets the folder") {
  const auto check = [](const Words& words) { dp_train::check_resume(parsed(words)); };
  CHECK_NOTHROW(check({"--init", "a"}));
  CHECK_NOTHROW(check({"--resume", "a"}));
  CHECK_NOTHROW(check({"--resume", "auto", "--init", "a", "--output-dir", "b"}));
  CHECK_NOTHROW(check({"--resume", "auto", "--experiment", "b"}));
  CHECK_THROWS_WITH(check({"--init", "a", "--resume", "b"}), "--init and --resume PATH exclude each other; give one");
  CHECK_THROWS_WITH(check({"--resume", "auto"}), "--resume auto requires the run's folder; give it with --output-dir");
}

TEST_CASE("the device options are printed in a fixed order, and replicas may share a device") {
  const Command command = parsed({"--engine", "ddp", "--replicas-per-device", "2", "-b", "8", "--cpu", "3"});
  CHECK(dp_train::device_options(command) == "--cpu 3 --replicas-per-device 2 --engine ddp");
  CHECK(dp_train::device_options(parsed({"--gpus", "0,1"})) == "--gpus 0,1");
  CHECK(dp_train::device_options(parsed({"--num-gpus", "1"})) == "--num-gpus 1");
  CHECK(dp_train::device_options(parsed({"-b", "8"})).empty());
  const dp_train::Devices devices = dp_train::choose_devices(command);
  const std::vector<dp::Device> one = dp::cpus(3);
  CHECK(devices.list == std::vector<dp::Device>{one[0], one[0], one[1], one[1], one[2], one[2]});
  CHECK(devices.notice.empty());
  CHECK(devices.warning.empty());
}

}  // namespace
