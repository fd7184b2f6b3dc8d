// Every field of the records that a run writes: lines of metrics.jsonl, rows, scalars, summary.json, config.toml,
// env.json.
#include "engine/train/record/records.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "dp/run_options.h"
#include "engine/train/record/event_file.h"
#include "engine/train/record/prometheus.h"
#include "engine/train/record/run_config.h"
#include "support/catch.h"
#include "support/temporary_folder.h"
#include "train/expect_error.h"

namespace {

using namespace dp;
using dp::test::expect_error;
using dp::test::read_text;
using dp::test::TemporaryFolder;
using dp::test::write_text;
using Json = nlohmann::ordered_json;

StepReport step_report() {
  StepReport report;
  report.epoch = 2, report.batch = 3, report.batches = 9, report.step = 17;
  report.lr = 0.125, report.images_per_second = 512, report.loading_share = 0.25;
  report.eta_seconds = 99, report.seconds_train = 64;
  report.recent = {.loss_sum = 6, .samples = 4, .top1 = 1, .top5 = 3, .skipped = 5, .grad_norm = 1.5};
  report.recent.loss_scale = 1024;
  report.epoch_so_far = {.loss_sum = 1, .samples = 1};
  report.phases.push_back({.scatter = 1, .forward = 2, .backward = 3, .reduce = 4, .update = 5, .broadcast = 6});
  report.phases[0].waiting = 7, report.phases[0].graph = 8;
  return report;
}

const char* const kStepLine =
    R"({"kind":"train","epoch":2,"step":17,"lr":0.125,"loss":1.5,"top1":25.0,"top5":75.0,"images_per_second":512.0,)"
    R"("loading_share":0.25,"seconds_train":64.0,"grad_norm":1.5,"skipped":5,"loss_scale":1024.0,)"
    R"("phases":[{"scatter":1.0,"forward":2.0,"backward":3.0,"reduce":4.0,"update":5.0,"broadcast":6.0,)"
    R"("graph":8.0,"waiting":7.0}]})";

EvalReport eval_report() {
  EvalReport report;
  report.epoch = 2, report.step = 17, report.seconds = 0.5, report.average = true, report.best = true;
  report.stats = {.loss_sum = 6, .samples = 4, .top1 = 1, .top5 = 3};
  return report;
}

TEST_CASE("a line of metrics.jsonl has each number of its report") {
  CHECK(to_record(step_report()).dump() == kStepLine);
  StepReport plain = step_report();
  plain.recent.grad_norm = 0;
  plain.recent.loss_scale.reset();
  CHECK_FALSE(to_record(plain).contains("grad_norm"));
  CHECK_FALSE(to_record(plain).contains("loss_scale"));
  CHECK(to_record(eval_report()).dump() ==
        R"({"kind":"eval","epoch":2,"step":17,"loss":1.5,"top1":25.0,"top5":75.0,"seconds":0.5,"average":true,)"
        R"("best":true})");
  TrainState state;
  state.epoch = 1, state.step = 9;
  CHECK(to_record(state, "runs/x", {{"lr", 0.5, 0.25}, {"amp", {}, true}}, {{"lr", "command line"}}).dump() ==
        R"({"kind":"resumed","epoch":1,"step":9,"from":"runs/x","changes":[{"option":"lr","before":0.5,"now":0.25,)"
        R"("by":"command line"},{"option":"amp","before":null,"now":true}]})");
}

TEST_CASE("statistics add up, and the last step's norm and scale stay") {
  Stats sum{.loss_sum = 1, .samples = 2, .top1 = 3, .top5 = 4, .skipped = 5, .grad_norm = 6};
  add(sum, {.loss_sum = 10, .samples = 20, .top1 = 30, .top5 = 40, .skipped = 50, .grad_norm = 60});
  CHECK(sum.loss_sum == 11);
  CHECK(sum.samples == 22);
  CHECK(sum.top1 == 33);
  CHECK(sum.top5 == 44);
  CHECK(sum.skipped == 55);
  CHECK(sum.grad_norm == 60);
  CHECK_FALSE(sum.loss_scale);
  Stats none{.grad_norm = 7};
  none.loss_scale = 2;
  add(sum, none);  // no step
  CHECK(sum.grad_norm == 60);
  CHECK(sum.loss_scale == 2.0f);
  add(sum, {.skipped = 1, .grad_norm = 8});
  CHECK(sum.grad_norm == 8);
  add(sum, {.samples = 1, .grad_norm = 9});
  CHECK(sum.grad_norm == 9);
}

TEST_CASE("every phase of every replica is added up") {
  std::vector<PhaseTimes> sum = step_report().phases;
  std::vector<PhaseTimes> more = sum;
  more.push_back({.update = 9});
  add(sum, more);
  REQUIRE(sum.size() == 2);
  for (const Phase& phase : phases()) {
    INFO(phase.name);
    CHECK(sum[0].*phase.seconds == 2 * (more[0].*phase.seconds));
    CHECK(sum[1].*phase.seconds == more[1].*phase.seconds);
  }
  add(sum, {{.update = 1}});
  CHECK(sum.size() == 2);
  CHECK(sum[0].update == 11);
}

TEST_CASE("metrics.csv and the scalars have each number under its name") {
  CHECK(csv_header() ==
        "kind,epoch,step,lr,loss,top1,top5,images_per_second,loading_share,grad_norm,skipped,loss_scale,seconds,"
        "average,best,mae,rmse,r2,f1,map\n");
  const Json step = to_record(step_report()), evaluation = to_record(eval_report());
  CHECK(csv_row(step) == "train,2,17,0.125,1.5,25.0,75.0,512.0,0.25,1.5,5,1024.0,,,,,,,,\n");
  CHECK(csv_row(evaluation) == "eval,2,17,,1.5,25.0,75.0,,,,,,0.5,true,true,,,,,\n");
  CHECK(csv_row(Json{{"step", 7}}).empty());
  CHECK(scalars_of(step) == Scalars{{"Train/lr", 0.125},
                                    {"Train/loss", 1.5},
                                    {"Train/acc1", 25},
                                    {"Train/acc5", 75},
                                    {"Train/images_per_second", 512},
                                    {"Train/loading_share", 0.25},
                                    {"Train/grad_norm", 1.5},
                                    {"Train/loss_scale", 1024}});
  CHECK(scalars_of(evaluation) ==
        Scalars{{"Test EMA/loss", 1.5}, {"Test EMA/acc1", 25}, {"Test EMA/acc5", 75}, {"Test EMA/seconds", 0.5}});
}

TEST_CASE("a metric of the program's own is a column, a scalar and a sample of metrics.prom") {
  EvalReport report = eval_report();
  report.metrics = {{"balanced", 62.5}, {"a,\"b", 0.5}};
  const Json record = to_record(report);
  CHECK(csv_header({"balanced", "a,\"b"}).ends_with(",map,balanced,\"a,\"\"b\"\n"));
  CHECK(csv_row(record, {"balanced", "a,\"b"}).ends_with(",true,true,,,,,,62.5,0.5\n"));
  CHECK(csv_table(record.dump() + "\n", {"balanced"}) == csv_header({"balanced"}) + csv_row(record, {"balanced"}));
  CHECK(std::ranges::count(scalars_of(record), Scalars::value_type("Test EMA/balanced", 62.5)) == 1);
  const TemporaryFolder temp;
  PrometheusFile prometheus(temp.path());
  prometheus.add(record);
  CHECK_THAT(read_text(temp / "metrics.prom"), Catch::Contains(",weights=\"average\",metric=\"balanced\"} 62.5\n") &&
                                                   Catch::Contains(",metric=\"a,\\\"b\"} 0.5\n"));
}

TEST_CASE("metrics.prom has the latest figures under names of Prometheus, in its base units") {
  const TemporaryFolder temp;
  const std::string run = std::filesystem::absolute(temp.path()).string();
  PrometheusFile prometheus(temp.path());
  StepReport step = step_report();
  prometheus.add(to_record(step));
  prometheus.saved(1700000000);
  step.step = 34, step.recent.skipped = 2, step.recent.loss_scale.reset();
  prometheus.add(to_record(step));
  EvalReport evaluation = eval_report();
  prometheus.add(to_record(evaluation));
  evaluation.average = false, evaluation.stats.loss_sum = NAN;
  prometheus.add(to_record(evaluation));
  prometheus.add(Json{{"kind", "resumed"}, {"step", 1}});
  prometheus.saved(1700000001);
  std::string samples;
  int described = 0;
  std::istringstream lines(read_text(temp / "metrics.prom"));
  for (std::string line; std::getline(lines, line);) {
    described += line.starts_with("# ");
    if (line.starts_with('#')) continue;
    const std::size_t at = line.find("run=\"" + run + "\"");
    REQUIRE(at != std::string::npos);
    samples += line.replace(at, run.size() + 6, "R") + "\n";
  }
  CHECK(samples ==
        "dp_steps_total{R} 34\ndp_epoch{R} 2\ndp_learning_rate{R} 0.125\ndp_train_loss{R} 1.5\n"
        "dp_train_accuracy_ratio{R,top=\"1\"} 0.25\ndp_train_accuracy_ratio{R,top=\"5\"} 0.75\n"
        "dp_images_per_second{R} 512\ndp_loading_ratio{R} 0.25\ndp_train_seconds_total{R} 64\n"
        "dp_gradient_norm{R} 1.5\ndp_loss_scale{R} 1024\n"
        "dp_test_loss{R,weights=\"average\"} 1.5\ndp_test_loss{R,weights=\"trained\"} NaN\n"
        "dp_test_accuracy_ratio{R,weights=\"average\",top=\"1\"} 0.25\n"
        "dp_test_accuracy_ratio{R,weights=\"average\",top=\"5\"} 0.75\n"
        "dp_test_accuracy_ratio{R,weights=\"trained\",top=\"1\"} 0.25\n"
        "dp_test_accuracy_ratio{R,weights=\"trained\",top=\"5\"} 0.75\n"
        "dp_test_seconds{R,weights=\"average\"} 0.5\ndp_test_seconds{R,weights=\"trained\"} 0.5\n"
        "dp_skipped_steps_total{R} 7\ndp_checkpoint_timestamp_seconds{R} 1700000001\n");
  CHECK(described == 2 * 15);
  CHECK_THAT(read_text(temp / "metrics.prom"),
             Catch::Contains("# HELP dp_steps_total Optimizer steps.\n# TYPE dp_steps_total counter\n") &&
                 Catch::Contains("# TYPE dp_epoch gauge\n"));
}

TEST_CASE("summary.json has each field of the summary") {
  RunSummary summary;
  summary.model = "m", summary.dataset = "d", summary.engine = "ddp", summary.devices = {"a", "b"};
  summary.communicator = {"host", "why 1"}, summary.graphs = {"none", "why 2"}, summary.pipeline = "2 stages";
  summary.global_batch = 1, summary.epochs = 2, summary.steps = 3, summary.skipped_steps = 4;
  summary.seconds_train = 5, summary.images_per_second = 6, summary.train_loss = 7, summary.test_loss = NAN;
  summary.top1 = 8, summary.top5 = 9, summary.weights_sha256 = "sha", summary.checkpoint = "c";
  summary.interrupted = true, summary.end = "early", summary.output_dir = "o";
  summary.layers = {{"l", "i", 0.5, 0.25}};
  CHECK(to_json(summary) ==
        R"({"model":"m","dataset":"d","engine":"ddp","devices":["a","b"],"communicator":"host",)"
        R"("communicator_reason":"why 1","graphs":"none","graphs_reason":"why 2","pipeline":"2 stages",)"
        R"("global_batch":1,"epochs":2,"steps":3,"skipped_steps":4,"seconds_train":5.0,"images_per_second":6.0,)"
        R"("train_loss":7.0,"test_loss":null,"top1":8.0,"top5":9.0,"weights_sha256":"sha","checkpoint":"c",)"
        R"("interrupted":true,"end":"early",)"
        R"("layers":[{"name":"l","implementation":"i","seconds":0.5,"floor_seconds":0.25}]})");
}

TEST_CASE("config.toml lists the parameter groups that are not options") {
  TrainerOptions options;
  options.parallel.devices = cpus(1);
  options.parallel.parameter_groups = {{.pattern = "a*", .frozen = true},
                                       {.vectors = true, .weight_decay = 0.0f},
                                       {.pattern = "b", .vectors = true, .lr_factor = 0.5f},
                                       {.pattern = "c", .lr_factor = 2, .weight_decay = 0.25f},
                                       {.pattern = "d", .vectors = true, .frozen = true}};
  const Json config = run_config("m", options, options);
  CHECK(config["parameter-groups"].dump() ==
        R"(["b of one dimension: lr x 0.5","c: lr x 2, weight decay 0.25","d of one dimension: frozen"])");
  CHECK(config["freeze"].dump() == R"(["a*"])");
  CHECK(config["no-decay-norm-bias"] == true);
  CHECK(config.back().dump() == R"({"devices":["cpu"]})");
}

TEST_CASE("TOML values: arrays, what is not finite, and integers beyond 63 bits as text") {
  CHECK(to_toml(Json{{"list", {1, "a\"", true}},
                     {"none", Json::array()},
                     {"table", {{"x", 1.5}}},
                     {"inf", INFINITY},
                     {"nan", NAN},
                     {"largest", std::uint64_t{INT64_MAX}},
                     {"seed", std::uint64_t{INT64_MAX} + 1}}) ==
        "list = [1, \"a\\\"\", true]\nnone = []\ninf = nan\nnan = nan\nlargest = 9223372036854775807\n"
        "seed = \"9223372036854775808\"\n\n[table]\nx = 1.5\n");
}

TEST_CASE("changed options: in the order of the new run, then those that it lacks, without tables") {
  const Json before{{"gone", 1}, {"lr", 0.5}, {"same", "x"}, {"resolved", {{"workers", 2}}}};
  const Json now{{"new", true}, {"same", "x"}, {"lr", "0.5"}, {"resolved", {{"workers", 3}}}};
  std::vector<std::string> texts;
  for (const ChangedOption& change : changed_options(before, now))
    texts.push_back(to_text(change, {{"lr", "command line"}}));
  CHECK(texts == std::vector<std::string>{"new none -> true", "lr 0.5 -> 0.5 (command line)", "gone 1 -> none"});
}

TEST_CASE("a resumed run's record keeps the options of the first start, and its resolved part stays last") {
  Json config{{"lr", 1}, {"init", "new"}, {"resolved", {{"workers", 3}}}};
  continue_record(config, Json{{"init", "old"}, {"init-partial", true}, {"lr", 2}});
  CHECK(config.dump() == R"({"lr":1,"init":"old","init-partial":true,"resolved":{"workers":3}})");
}

TEST_CASE("a change of devices names those in effect, if both are known and differ") {
  const auto with = [](const std::vector<std::string>& devices) { return Json{{"resolved", {{"devices", devices}}}}; };
  const auto change = changed_devices(with({"cpu", "cpu"}), with({"cuda:0"}));
  REQUIRE(change);
  CHECK(change->name == "devices");
  CHECK(change->before == "cpu, cpu");
  CHECK(change->now == "cuda:0");
  CHECK_FALSE(changed_devices(with({"cpu"}), with({"cpu"})));
  CHECK_FALSE(changed_devices(Json::object(), with({"cpu"})));
  CHECK_FALSE(changed_devices(Json(), with({"cpu"})));
  CHECK(changed_devices(Json{{"devices", {"cpu", "gpu"}}}, with({"cpu"}))->before == "cpu, gpu");
}

TEST_CASE("recorded options are repeated as texts, except those of the first start or of automatic choices") {
  const auto names_of = [](const std::string& config) {
    std::string text;
    for (const RecordedOption& option : recorded_options(config)) {
      text += option.name + ":";
      for (const std::string& each : option.texts) text += " " + each;
      text += "\n";
    }
    return text;
  };
  const std::string own =
      R"("model":"tiny","lr":0.5,"no-shuffle":true,"freeze":["a","b"],"none":[],"unset":null,"devices":["cpu"],)"
      R"("parameter-groups":["g"],"init":"i","init-partial":true,"table":{"x":1},"threads-per-replica":1,"workers":2,)"
      R"("images-on":"host","comm":"host","bucket-mb":4.5,"reduce":"master")";
  const std::string plain = "model: tiny\nlr: 0.5\nno-shuffle: true\nfreeze: a b\nnone:\n";
  CHECK(names_of("{" + own + "}") == plain);
  CHECK(names_of("{" + own + R"(,"resolved":{"devices":["cpu"]}})") ==
        plain + "threads-per-replica: 1\nworkers: 2\nimages-on: host\ncomm: host\nbucket-mb: 4.5\nreduce: master\n");
  for (const char* text : {"", "[]", "{", "7"})
    expect_error(ErrorCode::data, {"the recorded options are not a JSON object"}, [&] { recorded_options(text); });
}

TEST_CASE("the comment of config.toml names program, host, command and data, in printable lines") {
  Json part{
      {"program", "dp 1\x1b"},
      {"started", "T"},
      {"host", "h"},
      {"command", {"dp_train", "-b", "8\nlr = 9"}},
      {"data", {{"name", "digits"}, {"path", "/data"}, {"training_images", 3}, {"test_images", 2}, {"classes", 10}}}};
  const std::string head =
      "# dp 1\\x1b, started T on h\n# command: dp_train -b $'8\\012lr = 9'\n# data: digits, 3 training ";
  CHECK(provenance_comment(part) == head + "and 2 test images, 10 classes, from /data\n");
  part["data"]["path"] = "";
  CHECK(provenance_comment(part) == head + "and 2 test images, 10 classes\n");
}

TEST_CASE("env.json keeps all parts of a run, and the end of a part replaces only that part") {
  const TemporaryFolder temp;
  const auto parts = [&] { return Json::parse(read_text(temp / "env.json"))["parts"]; };
  add_environment(temp.path(), {{"started", "1"}, {"host", "\xff"}});
  CHECK(read_text(temp / "env.json") ==
        "{\n \"parts\": [\n  {\n   \"started\": \"1\",\n   \"host\": \"\\ufffd\"\n  }\n ]\n}\n");
  add_environment(temp.path(), {{"started", "2"}});
  end_environment(temp.path(), {{"started", "2"}, {"program", "p"}}, "complete");
  REQUIRE(parts().size() == 2);
  CHECK(parts()[0].size() == 2);
  CHECK(parts()[1]["started"] == "2");
  CHECK(parts()[1]["program"] == "p");
  CHECK(parts()[1]["end"] == "complete");
  CHECK(parts()[1].contains("ended"));
  end_environment(temp.path(), {{"started", "3"}}, "interrupted");
  REQUIRE(parts().size() == 3);
  CHECK(parts()[1]["end"] == "complete");
  CHECK(parts()[2]["end"] == "interrupted");
  for (const char* damaged : {"", "[]", "{\"parts\":7}", "{\"other\":[]}"}) {
    write_text(temp / "env.json", damaged);
    add_environment(temp.path(), {{"started", "4"}});
    CHECK(parts().size() == 1);
  }
  for (const char* damaged : {"[5]", "[{\"started\":5}]"}) {
    write_text(temp / "env.json", "{\"parts\":" + std::string(damaged) + "}");
    end_environment(temp.path(), {{"started", "6"}}, "complete");
    CHECK(parts().size() == 2);
  }
  for (const char* nested : {"[", "{\"a\":"}) {
    std::string deep = "{\"parts\":[{\"started\":";
    for (int i = 0; i < 300'000; ++i) deep += nested;
    for (int i = 0; i < 300'000; ++i) deep += *nested == '[' ? "]" : i == 0 ? "1}" : "}";
    deep += "}]}";
    CHECK(Json::accept(deep));
    write_text(temp / "env.json", deep);
    add_environment(temp.path(), {{"started", "7"}});  // too deep to be copied
    CHECK(parts().size() == 1);
    expect_error(ErrorCode::data, {"the recorded options are not a JSON object"}, [&] { recorded_options(deep); });
  }
  write_text(temp / "env.json", "{\"parts\":[{}]}" + std::string(std::size_t{16} << 20, ' '));
  add_environment(temp.path(), {{"started", "5"}});  // too long to be read
  CHECK(parts().size() == 1);
}

}  // namespace
