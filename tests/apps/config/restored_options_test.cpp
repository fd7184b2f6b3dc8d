// --resume RUN alone continues a run with all of its options.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "apps/idx_files.h"
#include "apps/options/option_rows.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

namespace {

using namespace dp::test;
namespace fs = std::filesystem;

std::string text_of(const std::string& file) { return read_text(file); }

// config.toml without its comments and the table of resolved choices.
std::string given_part(const std::string& toml) {
  const std::size_t begin = toml.find("model = ");
  return toml.substr(begin, toml.find("\n[resolved]\n") - begin);
}

std::string summary_weights(const std::string& run) {
  return nlohmann::json::parse(read_text(run + "/summary.json"))["weights_sha256"];
}

// A folder with images, in which the runs of a test are made.
class Place {
 public:
  Place() {
    fs::create_directory(temp_ / "digits");
    write_tiny_mnist(temp_ / "digits");
    write_targets(temp_ / "targets");
  }
  std::string path(const std::string& name) const { return temp_ / name; }

  Outcome run(const Words& words) const { return run_dp_train(words, temp_.path()); }
  // Trains one step, and returns the options that --resume alone would use.
  void check_restored(const Words& words) {
    const std::string folder = "run" + std::to_string(number_++);
    const Outcome trained = run(merged(words, {"--max-steps", "1", "--output-dir", folder}));
    INFO(Catch::Detail::stringify(words) << trained.err);
    REQUIRE(trained.code == 0);
    const Outcome resumed = run({"--resume", folder, "--save-config", folder + ".toml"});
    INFO(resumed.err);
    REQUIRE(resumed.code == 0);
    CHECK(text_of(path(folder + ".toml")) == given_part(text_of(path(folder + "/config.toml"))));
  }

 private:
  const TemporaryFolder temp_;
  int number_ = 0;
};

const Words kBase{"--dataset", "mnist", "--data-path", "digits", "--model", "mlp", "-b", "16", "--cpu", "2"};

void check_rows_restored(const std::vector<OptionRow>& rows, std::size_t part, std::size_t parts) {
  Place place;
  for (std::size_t i = part * rows.size() / parts; i < (part + 1) * rows.size() / parts; ++i) {
    const OptionRow& row = rows[i];
    const auto has = [&](const char* word) {
      return std::any_of(row.arguments.begin(), row.arguments.end(),
                         [&](const auto& w) { return w.starts_with(word); });
    };
    if (has("@") || row.code != 0 || row.base_code != 0 || !row.variables.empty()) continue;  // needs other files
    if (has("--cpu") || has("--replicas-per-device") || has("--engine") || has("--max-steps")) continue;
    Words base = kBase;
    if (row.setting == Setting::batch_norm || row.setting == Setting::synthetic) base = setting_words(row.setting);
    if (row.setting == Setting::targets) base = merged(setting_words(row.setting), {"--data-path", "targets"});
    place.check_restored(merged(base, merged(row.also, row.arguments)));
  }
}

TEST_CASE("a resume alone restores each training option, first half") { check_rows_restored(training_rows(), 0, 2); }
TEST_CASE("a resume alone restores each training option, second half") { check_rows_restored(training_rows(), 1, 2); }
TEST_CASE("a resume alone restores each option of data parallelism, first half") {
  check_rows_restored(parallel_rows(), 0, 2);
}
TEST_CASE("a resume alone restores each option of data parallelism, second half") {
  check_rows_restored(parallel_rows(), 1, 2);
}
TEST_CASE("a resume alone restores each option of data and order") { check_rows_restored(data_rows(), 0, 1); }

const Words kTwelve{"--lr",        "0.01",
                    "--momentum",  "0.5",
                    "--nesterov",  "--lr-scheduler",
                    "constant",    "--clip-grad-norm",
                    "0.5",         "--label-smoothing",
                    "0.1",         "--weight-decay",
                    "0.001",       "--seed",
                    "7",           "--drop-last",
                    "--model-ema", "--grad-accum-steps",
                    "2",           "--bn",
                    "pooled"};

TEST_CASE("an interrupted run with twelve options goes on bit for bit with --resume alone, from another folder too") {
  Place place;
  const Words words = kBase + Words{"--epochs", "4", "-p", "1"} + kTwelve;
  REQUIRE(place.run(words + Words{"--output-dir", "whole"}).code == 0);
  const StallGate gate(place.path("gate"));
  Program program(words + Words{"--output-dir", "part"}, place.path(""),
                  {"DP_FAIL=stall:forward:dev0:step6:600000ms", gate.variable()});
  gate.wait_for();
  ::kill(program.id(), SIGINT);
  program.wait_for_error("stopping");
  gate.open();
  const Outcome interrupted = program.wait();
  CHECK(interrupted.code == 130);
  CHECK_THAT(interrupted.out, Catch::Contains("--resume part"));
  fs::create_directory(place.path("elsewhere"));
  const Outcome resumed = run_dp_train({"--resume", "../part"}, place.path("elsewhere"));
  INFO(resumed.out << resumed.err);
  CHECK(resumed.code == 0);
  CHECK_THAT(resumed.out, !Catch::Contains(" -> "));  // nothing has changed
  CHECK(summary_weights(place.path("part")) == summary_weights(place.path("whole")));
  CHECK_FALSE(fs::exists(place.path("part/config.2.toml")));
}

TEST_CASE("an option given again is printed and recorded, and the record of the first part stays") {
  Place place;
  REQUIRE(place.run(kBase + kTwelve + Words{"--epochs", "1", "--output-dir", "run"}).code == 0);
  const std::string first = text_of(place.path("run/config.toml"));
  const Outcome resumed = place.run({"--resume", "run", "--epochs", "2", "--lr", "0.05", "--clip-grad-norm", "2"});
  INFO(resumed.err);
  REQUIRE(resumed.code == 0);
  CHECK_THAT(resumed.out, Catch::Contains("lr 0.01 -> 0.05 (command line)\n") &&
                              Catch::Contains("epochs 1 -> 2 (command line)\n") &&
                              Catch::Contains("clip-grad-norm 0.5 -> 2.0 (command line)\n"));
  CHECK(text_of(place.path("run/config.toml")) == first);
  const std::string second = text_of(place.path("run/config.2.toml"));
  CHECK_THAT(second, Catch::Contains("lr = 0.05\n") && Catch::Contains("momentum = 0.5\n"));
  std::ifstream metrics(place.path("run/metrics.jsonl"));
  nlohmann::json history;
  for (std::string line; std::getline(metrics, line);)
    if (const auto json = nlohmann::json::parse(line); json["kind"] == "resumed") history = json;
  CHECK(history["step"] == 4);
  REQUIRE(history["changes"].size() == 3);
  CHECK(history["changes"][1] ==
        nlohmann::json{{"option", "lr"}, {"before", 0.01}, {"now", 0.05}, {"by", "command line"}});
  // A third part with the options of the second adds no record.
  REQUIRE(place.run({"--resume", "run", "--epochs", "2"}).code == 0);
  CHECK(text_of(place.path("run/config.2.toml")) == second);
  CHECK_FALSE(fs::exists(place.path("run/config.3.toml")));
}

TEST_CASE("devices are not restored, and a change of them is said") {
  Place place;
  REQUIRE(place.run(kBase + Words{"--epochs", "1", "--output-dir", "run"}).code == 0);
  const Outcome resumed = place.run({"--resume", "run", "--epochs", "2", "--cpu", "3"});
  CHECK(resumed.code == 0);
  CHECK_THAT(resumed.out, Catch::Contains("devices changed from cpu, cpu to cpu, cpu, cpu"));
}

TEST_CASE("a recorded split that does not fit the devices of a resume is dropped, and the change is said") {
  Place place;
  for (const char* split : {"3:1", "auto"}) {
    const std::string folder = split[0] == 'a' ? "measured" : "weighted";
    REQUIRE(place.run(kBase + Words{"--epochs", "1", "--split", split, "--output-dir", folder}).code == 0);
    CHECK_THAT(text_of(place.path(folder + "/config.toml")), Catch::Contains("\nsplit = \"" + std::string(split)));
    CHECK(place.run({"--evaluate", "--resume", folder, "--cpu", "1"}).code == 0);
    const Outcome same = place.run({"--resume", folder, "--epochs", "2", "--cpu", "2"});
    INFO(same.err);
    CHECK(same.code == 0);
    CHECK_THAT(same.out, !Catch::Contains("split " + std::string(split) + " -> "));
    const Outcome ranks = place.run({"--resume", folder, "--epochs", "3", "--engine", "ddp", "--cpu", "2"});
    INFO(ranks.err);
    CHECK(ranks.code == 0);
    CHECK_THAT(ranks.out, Catch::Contains("split " + std::string(split) + " -> balanced"));
  }
  REQUIRE(place.run(kBase + Words{"--epochs", "1", "--split", "3:1", "--output-dir", "two"}).code == 0);
  const Outcome three = place.run({"--resume", "two", "--epochs", "2", "--cpu", "3"});
  INFO(three.err);
  CHECK(three.code == 0);
  CHECK_THAT(three.out, Catch::Contains("split 3:1 -> balanced"));
  const Outcome given = place.run({"--resume", "two", "--epochs", "3", "--cpu", "3", "--split", "3:1"});
  CHECK(given.code == 2);
}

TEST_CASE("every rank of ddp goes on with the options that rank 0 reads") {
  Place place;
  const Words words = kBase + kTwelve + Words{"--engine", "ddp"};
  const Words no_pooling{"--bn", "sync"};
  REQUIRE(place.run(merged(words, no_pooling) + Words{"--epochs", "2", "--output-dir", "whole"}).code == 0);
  REQUIRE(place.run(merged(words, no_pooling) + Words{"--epochs", "1", "--output-dir", "part"}).code == 0);
  const Outcome resumed = place.run({"--engine", "ddp", "--cpu", "2", "--resume", "part", "--epochs", "2"});
  INFO(resumed.err);
  CHECK(resumed.code == 0);
  CHECK(summary_weights(place.path("part")) == summary_weights(place.path("whole")));
}

TEST_CASE("a new scheduler or optimizer drops the recorded options of the other one") {
  Place place;
  REQUIRE(
      place.run(kBase + Words{"--lr-scheduler", "step", "--lr-gamma", "0.5", "--epochs", "1", "--output-dir", "run"})
          .code == 0);
  const Outcome resumed = place.run({"--resume", "run", "--lr-scheduler", "cosine", "--epochs", "2"});
  CHECK(resumed.code == 0);
  CHECK_THAT(resumed.out, Catch::Contains("lr-gamma 0.5 -> none"));
  const Outcome unmet = place.run({"--resume", "run", "--lr-scheduler", "cosine", "--lr-gamma", "0.1"});
  CHECK(unmet.code == 2);
  CHECK_THAT(unmet.err, Catch::Contains("--lr-gamma"));
}

}  // namespace
