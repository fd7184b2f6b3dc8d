// env.json, the comments of config.toml, metrics.csv and metrics.prom.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/train/record/records.h"
#include "support/catch.h"
#include "train/tiny_run.h"

namespace {

using namespace dp;
using dp::test::lines_of;
using dp::test::read_text;
using dp::test::run_until;
using dp::test::TemporaryFolder;
using dp::test::tiny_options;
using dp::test::tiny_run;
using dp::test::write_text;

nlohmann::json parts_of(const std::string& folder) {
  return nlohmann::json::parse(read_text(folder + "/env.json"))["parts"];
}

TEST_CASE("env.json has a part for each start of a run: where, when, with what, and how it ended") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp.path());
  options.program = "tiny 1.0, commit abc";
  options.record = {{"data-path", std::string("/data/digits")}};
  run_until(options, 10);
  auto parts = parts_of(temp.path());
  REQUIRE(parts.size() == 1);
  const auto whole = parts[0];
  auto first = whole;
  CHECK(first["data"]["identity"]["train_fingerprint"].get<std::string>().size() == 64);
  first["data"].erase("identity");
  CHECK(first["end"] == "interrupted");
  CHECK(first["program"] == "tiny 1.0, commit abc");
  CHECK_THAT(first["command"][0].get<std::string>(), Catch::Contains("test_trainer"));
  CHECK(first["devices"] == nlohmann::json{"cpu", "cpu"});
  CHECK(first["data"] == nlohmann::json{{"name", "digits"},
                                        {"path", "/data/digits"},
                                        {"training_images", 300},
                                        {"test_images", 130},
                                        {"classes", 10}});
  CHECK_THAT(first["started"].get<std::string>(),
             Catch::Matches("20\\d\\d-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d[+-]\\d{4}"));
  CHECK(first["started"].get<std::string>() <= first["ended"].get<std::string>());
  CHECK_FALSE(first["host"].get<std::string>().empty());
  options.resume = "auto";
  tiny_run(options);
  parts = parts_of(temp.path());
  REQUIRE(parts.size() == 2);
  CHECK(parts[0] == whole);
  CHECK(parts[1]["end"] == "complete");
}

TEST_CASE("a part of a run that was killed has no end, and a damaged env.json does not stop the next") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp.path());
  TrainerCallbacks callbacks;
  callbacks.on_step = [&](const StepReport& report) {
    if (report.step != 3) return;
    const auto parts = parts_of(temp.path());
    CHECK(parts.size() == 1);
    CHECK_FALSE(parts[0].contains("end"));
    write_text(temp / "env.json", "{\"parts\": 7");
  };
  tiny_run(options, callbacks);
  CHECK(parts_of(temp.path()).size() == 1);
}

TEST_CASE("config.toml begins with comments that say where the run comes from") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp.path());
  options.program = "tiny 1.0\nlr = 9";
  options.max_steps = 1;
  tiny_run(options);
  const auto lines = lines_of(read_text(temp / "config.toml"));
  CHECK_THAT(lines[0], Catch::StartsWith("# tiny 1.0"));
  for (const std::string& line : lines) CHECK_FALSE(line.starts_with("lr = 9"));
  CHECK_THAT(read_text(temp / "config.toml"),
             Catch::Contains("\n# data: digits, 300 training and 130 test images, 10 classes\nmodel = \"tiny\"\n"));
}

TEST_CASE("metrics.csv has the records of metrics.jsonl as rows, also after a resume") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp.path());
  run_until(options, 10);
  options.resume = "auto";
  options.max_steps = 15;
  tiny_run(options);
  const std::string csv = read_text(temp / "metrics.csv");
  CHECK(csv == csv_table(read_text(temp / "metrics.jsonl")));
  CHECK(lines_of(csv).size() == 1 + 15 + 3);
  CHECK_THAT(csv, Catch::StartsWith("kind,epoch,step,lr,loss,top1,top5,images_per_second,"));
}

TEST_CASE("a run writes its own metrics to metrics.csv, and metrics.prom is of the present start") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp.path());
  options.metrics = {
      {"count", [](const EvaluatedLogits& evaluated) { return static_cast<double>(evaluated.labels.size()); }}};
  run_until(options, 10);
  CHECK_THAT(read_text(temp / "metrics.csv"), Catch::Contains(",map,count\n") && Catch::Contains(",130.0\n"));
  const std::string prometheus = read_text(temp / "metrics.prom");
  CHECK_THAT(prometheus, Catch::Contains("dp_steps_total{run=\"" + temp.path() + "\"} 10\n") &&
                             Catch::Contains("\ndp_checkpoint_timestamp_seconds{"));
  options.resume = "auto";
  options.max_steps = 10;
  tiny_run(options);  // only evaluates
  CHECK_THAT(read_text(temp / "metrics.prom"),
             Catch::Contains("\ndp_test_loss{") && !Catch::Contains("dp_steps_total"));
}

TEST_CASE("a cell of metrics.csv is empty if its record has no such number") {
  using Record = nlohmann::ordered_json;
  const std::string row = csv_row(Record{{"kind", "eval"}, {"step", 7}, {"loss", NAN}, {"top1", 12.5}, {"best", true}});
  CHECK(row == "eval,,7,,,12.5,,,,,,,,,true,,,,,\n");
  CHECK(csv_row(Record{{"kind", "resumed"}, {"step", 7}}).empty());
  CHECK(csv_table("{\"kind\":\"train\",\"step\":1}\nnot json\n") == csv_header() + "train,,1,,,,,,,,,,,,,,,,,\n");
}

}  // namespace
