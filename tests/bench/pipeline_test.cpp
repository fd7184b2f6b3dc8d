// dp_bench pipeline: its cases, its figures, and a run.
#include "apps/dp_bench/pipeline.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/run_bench.h"
#include "bench/shown_table.h"
#include "benchmarks/programs/pipeline_figures.h"
#include "dp/error.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

using namespace dp::test;
using dp_bench::Kind;
using dp_bench::Measured;
using dp_bench::PipelineBench;
using dp_bench::PipelineCase;
using dp_bench::Reply;
using dp_bench::Report;
using dp_bench::Row;
using nlohmann::json;
using Lines = std::vector<std::string>;

namespace {

PipelineBench small_bench() {
  PipelineBench bench;
  bench.step.network.model = "mnist_convnet";
  bench.step.run.batch_size = 24;
  bench.step.run.parallel.pipeline.stages = 2;
  return bench;
}

std::vector<std::string> keys_of(const PipelineBench& bench) {
  std::vector<std::string> keys;
  for (const PipelineCase& one : cases_of(resolved(bench))) keys.push_back(one.key);
  return keys;
}

const PipelineCase& case_of(const std::vector<PipelineCase>& cases, const std::string& key) {
  const auto found = std::ranges::find(cases, key, &PipelineCase::key);
  REQUIRE(found != cases.end());
  return *found;
}

std::string word_after(const std::vector<std::string>& words, const std::string& option) {
  const auto at = std::ranges::find(words, option);
  return at == words.end() ? "" : *(at + 1);
}

double number(const Row& row, std::size_t column) { return std::get<double>(row.cells.at(column)); }

// A case that took these seconds in two rounds.
Measured measured(const std::string& key, int devices, double first, double second) {
  Measured one;
  one.spec.key = key;
  one.spec.devices = devices;
  one.seconds_per_step = {first, second};
  one.ready.fields = {{"stages", "2 stages at fc1, 80 % balanced"}, {"bubble_formula", "0.2"}};
  const Reply reply{
      "done", {{"device_bytes", "2097152"}, {"bubble", "0.3"}, {"balance", "0.8"}, {"simulated_seconds", "0.025"}}};
  one.replies = {reply, reply};
  return one;
}

struct Run {
  PipelineBench bench;
  std::vector<PipelineCase> cases;
  dp_bench::StepResult result;

  Report report() const { return pipeline_report(bench, cases, result); }
};

// gpipe with two sizes of micro-batches, one of which has a note instead of times.
Run gpipe_run(double model_parallel) {
  Run run{.bench = small_bench()};
  run.bench.schedules = {"gpipe"};
  run.bench.split_sizes = {6, 24};
  run.bench = resolved(run.bench);
  run.cases = cases_of(run.bench);
  run.result.options = run.bench.step;
  run.result.variants = {measured("single", 1, 0.04, 0.06),
                         measured("model-parallel", 2, model_parallel, model_parallel),
                         measured("gpipe-m4", 2, 0.04, 0.04), measured("gpipe-m1", 2, 0, 0)};
  run.result.variants.back().seconds_per_step.clear();
  run.result.variants.back().note = "out of luck";
  return run;
}

}  // namespace

TEST_CASE(
    "pipeline: a case for one device, for model parallelism, and for every schedule and number of micro-batches") {
  PipelineBench bench = small_bench();
  bench.schedules = {"1f1b", "zb-h1"};
  bench.split_sizes = {16, 4, 12, 1};  // 16 and 12 both mean two micro-batches
  CHECK(keys_of(bench) == std::vector<std::string>{"single", "model-parallel", "1f1b-m24", "1f1b-m6", "1f1b-m2",
                                                   "zb-h1-m24", "zb-h1-m6", "zb-h1-m2"});
  bench.accumulate = true;
  const std::vector<std::string> more = keys_of(bench);
  CHECK(std::ranges::count(more, "single-m6") == 1);
  CHECK(more.size() == 8 + 3);
  const std::vector<PipelineCase> cases = cases_of(resolved(bench));
  bench.split_sizes = {24, 12};  // a single micro-batch accumulates nothing
  CHECK(keys_of(bench) == std::vector<std::string>{"single", "model-parallel", "single-m2", "1f1b-m2", "1f1b-m1",
                                                   "zb-h1-m2", "zb-h1-m1"});
  CHECK(case_of(cases, "1f1b-m2").split_size == 12);
  CHECK(case_of(cases, "model-parallel").split_size == 24);
}

TEST_CASE("pipeline: without --split-sizes, the sizes of the published experiment up to the whole batch") {
  PipelineBench bench = small_bench();
  CHECK(resolved(bench).split_sizes == std::vector<std::int64_t>{1, 2, 4, 6, 8, 10, 12, 20, 24});
  bench.step.run.batch_size = 120;
  CHECK(resolved(bench).split_sizes.size() == 12);
  bench.step.replicas = 4;  // two replicas of 60 images
  CHECK(resolved(bench).split_sizes.back() == 60);
}

TEST_CASE("pipeline: a variant has its stages, schedule and threads, and one device has those of one stage") {
  PipelineBench bench = small_bench();
  bench.step.replicas = 4;
  bench.step.threads = 8;
  bench.step.run.parallel.pipeline.cuts = {"fc1"};
  bench.split_sizes = {3};
  bench = resolved(bench);
  const std::vector<PipelineCase> cases = cases_of(bench);
  const dp_bench::VariantSpec split = variant_of(bench, case_of(cases, "zb-h1-m4"));
  CHECK(split.devices == 4);
  for (const auto& [option, value] : std::vector<std::pair<std::string, std::string>>{{"--stages", "2"},
                                                                                      {"--schedule", "zb-h1"},
                                                                                      {"--micro-batches", "4"},
                                                                                      {"--cuts", "fc1"},
                                                                                      {"--cpu", "4"},
                                                                                      {"--threads", "2"}})
    CHECK(word_after(split.arguments, option) == value);
  CHECK(split.accumulates);
  const dp_bench::VariantSpec single = variant_of(bench, case_of(cases, "single"));
  CHECK(word_after(single.arguments, "--cpu") == "1");
  CHECK(word_after(single.arguments, "--threads") == "2");
  CHECK(word_after(single.arguments, "--stages").empty());
  CHECK_FALSE(single.accumulates);
}

TEST_CASE("pipeline: the report has speed-ups, shares of the bound, simulated and published rows, and the chart") {
  const Report report = gpipe_run(/*model_parallel=*/0.08).report();
  REQUIRE(report.sections.size() == 3);
  const std::vector<Row>& rows = report.sections[0].rows;
  REQUIRE(rows.size() == 4);
  CHECK(std::ranges::count_if(report.sections[0].columns, [](const dp_bench::Column& column) {
          return column.digits == 1 && (column.key == "images_per_second" || column.key == "ms_per_step");
        }) == 2);
  CHECK(number(rows[0], 7) == 1);
  CHECK(number(rows[2], 1) == 6);
  CHECK(number(rows[2], 2) == 4);
  CHECK(number(rows[2], 6) == Approx(24 / 0.04));
  CHECK(number(rows[2], 7) == Approx(1.25));  // the median of 1 and 1.5
  CHECK(number(rows[2], 8) == Approx(1));
  CHECK(number(rows[2], 9) == Approx(1.5));
  CHECK(number(rows[2], 10) == Approx(100 * 1.25 / (2 * 0.8 * 0.8)));
  CHECK(number(rows[1], 10) == Approx(100 * 0.625 / (2 * 0.8)));  // no two stages work at once: any balance
  CHECK(number(rows[2], 11) == Approx(30));
  CHECK(number(rows[2], 12) == Approx(20));
  CHECK(number(rows[2], 14) == Approx(2));
  CHECK(std::holds_alternative<std::monostate>(rows[0].cells.at(10)));
  CHECK(rows[3].kind == Kind::absent);
  CHECK(rows[3].note == "out of luck");

  const std::vector<Row>& simulated = report.sections[1].rows;
  REQUIRE(simulated.size() == 2);  // not of the single device, nor of the absent case
  for (const Row& row : simulated) CHECK(row.kind == Kind::modelled);
  CHECK(number(simulated[1], 3) == Approx(25));
  CHECK(number(simulated[1], 5) == Approx(2));  // the median of 1.6 and 2.4
  CHECK(number(simulated[1], 7) == Approx(1.6));

  const std::vector<Row>& published = report.sections[2].rows;
  REQUIRE(published.size() == 2);
  for (const Row& row : published) CHECK(row.kind == Kind::published);
  CHECK(number(published[0], 3) == 1.49);
  CHECK(number(published[0], 4) == Approx(100 * 1.49 / (6 * 2 / 7.0)));
  CHECK(number(published[1], 4) == Approx(100 * 1.54 / (10 * 2 / 11.0)));
  CHECK(std::ranges::count(report.facts,
                           std::pair<std::string, std::string>{"stages", "2 stages at fc1, 80 % balanced"}) == 1);

  const std::vector<dp_bench::Line>& lines = report.sections[0].chart->lines;
  REQUIRE(lines.size() == 3 + 3 + 1);
  CHECK(lines[0].level);
  CHECK(lines[1].level);
  CHECK(lines[2].label == "gpipe");
  CHECK_FALSE(lines[2].level);
  CHECK(lines[2].points.size() == 1);
  CHECK(lines[5].dashed);
  CHECK(lines[5].color == lines[2].color);
  CHECK(lines[5].points.front().y == Approx(24 / 0.025));
}

TEST_CASE("pipeline: the whole tables, and a title with the replicas, stages and threads") {
  Run run = gpipe_run(/*model_parallel=*/0.1);
  const Report report = run.report();
  CHECK(report.command == "pipeline");
  CHECK(report.title == "mnist_convnet on 1x28x28, 10 classes, batch 24, 2 stages, 1 CPU thread per stage");
  REQUIRE(report.sections.size() == 3);
  CHECK(report.sections[0].key == "pipeline");
  CHECK(report.sections[0].title == "Measured");
  CHECK(
      shown_table(report.sections[0]) ==
      Lines{"what split_size micro_batches ms_per_step ms_q1 ms_q3 images_per_second speed_up speed_up_low "
            "speed_up_high percent_of_bound bubble bubble_formula balance mib_per_device",
            "schedule | split size | micro-batches | ms/step | quartile | quartile | img/s | speed-up | from | to | "
            "% of bound | % bubble | by formula | % balance | MiB/device",
            "single device | 24 | 1 | 50.0 | 45.0 | 55.0 | 480.0 | 1.00 | 1.00 | 1.00 | - | - | - | - | 2",
            "model parallel | 24 | 1 | 100.0 | 100.0 | 100.0 | 240.0 | 0.50 | 0.40 | 0.60 | 31 | 30.0 | 20.0 | 80.0 | "
            "2",
            "gpipe | 6 | 4 | 40.0 | 40.0 | 40.0 | 600.0 | 1.25 | 1.00 | 1.50 | 98 | 30.0 | 20.0 | 80.0 | 2",
            "gpipe | 24 | 1 | none | none | none | none | none | none | none | none | none | none | none | none | "
            "not run: out of luck"});
  CHECK(report.sections[1].key == "simulated");
  CHECK(shown_table(report.sections[1]) ==
        Lines{"what split_size micro_batches ms_per_step images_per_second speed_up percent_of_bound measured",
              "schedule | split size | micro-batches | ms/step | img/s | speed-up | % of bound | "
              "measured ms / simulated",
              "model parallel | 24 | 1 | 25.0 | 960.0 | 2.00 | 125 | 4.00 | modelled",
              "gpipe | 6 | 4 | 25.0 | 960.0 | 2.00 | 156 | 1.60 | modelled"});
  CHECK(report.sections[2].key == "published");
  CHECK(report.sections[2].title == "Published: ResNet50 on two GPUs, batch 120");
  CHECK(shown_table(report.sections[2]) ==
        Lines{"what split_size micro_batches speed_up percent_of_bound bubble_formula",
              "program | split size | micro-batches | speed-up | % of bound | % bubble by formula",
              "PyTorch | 20 | 6 | 1.49 | 87 | 14.3 | published: another machine",
              "PyTorch | 12 | 10 | 1.54 | 85 | 9.1 | published: another machine"});
  const dp_bench::LineChart& chart = report.sections[0].chart.value();
  CHECK(chart.x_title == "split size: images of a micro-batch");
  CHECK(chart.y_title == "images per second");
  REQUIRE(chart.lines.size() == 7);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(chart.lines[i].label == Lines{"single device", "model parallel", "gpipe"}[i]);
    CHECK(chart.lines[i].color == static_cast<int>(i));
    CHECK(chart.lines[i].points.at(0).x == (i < 2 ? 24 : 6));
    CHECK(chart.lines[i].points.at(0).y == Approx(std::vector<double>{480, 240, 600}[i]));
    CHECK(chart.lines[3 + i].points.size() == (i < 2 ? 0 : 1));
  }
  CHECK(chart.lines[5].points[0].x == 6);
  CHECK(chart.lines[6].label == "simulated");
  run.bench.step.replicas = 4;
  run.bench.step.threads = 8;
  CHECK(run.report().title ==
        "mnist_convnet on 1x28x28, 10 classes, batch 24, 2 replicas of 2 stages, 2 CPU threads per stage");
}

TEST_CASE("pipeline figures: idle time, balance and the simulated step follow from the phases of all replicas") {
  using dp::benchmarks::pipeline_figures;
  const dp::PipelineOptions pipeline{.stages = 2, .micro_batches = 4, .schedule = dp::PipelineSchedule::one_f_one_b};
  const dp::PhaseTimes slow{.forward = 4, .backward = 8, .update = 1, .waiting = 100};
  const dp::PhaseTimes quick{.scatter = 0.5, .forward = 2, .backward = 4, .update = 1.5};  // done before the slow one
  // One step, two replicas: with equal stages of 1 + 2 seconds per micro-batch, (4 + 1) * 3 seconds.
  const std::vector<dp::PhaseTimes> equal{slow, slow, slow, slow};
  const auto alike = pipeline_figures(pipeline, equal, 1, 20);
  CHECK(alike.balance == Approx(1));
  CHECK(alike.simulated == Approx(15 + 1));
  CHECK(alike.bubble == Approx(1 - 13.0 / 20));
  const std::vector<dp::PhaseTimes> unequal{slow, quick, slow, quick};
  const auto different = pipeline_figures(pipeline, unequal, 1, 20);
  CHECK(different.balance == Approx((12 + 6) / 2.0 / 12));
  CHECK(different.simulated == Approx(4 * 3 + 0.5 + 1));  // the slow stage waits half a second for the first gradient
  CHECK(different.bubble == Approx(1 - (13 + 8) / 2.0 / 20));
  CHECK(pipeline_figures(pipeline, equal, 10, 200).simulated == Approx(1.6));
  CHECK(dp::benchmarks::bubble_of(pipeline) == Approx(0.2));
}

TEST_CASE("pipeline: wrong options end with exit code 2 and one line that states the remedy") {
  const std::vector<std::pair<std::string, std::string>> table{
      {"--pipeline-stages 1", "give 2 or more stages"},
      {"--pipeline-stages 9", "use at most"},
      {"--split-sizes 0", "'0' is not"},
      {"-b 32 --split-sizes 4,64", "--split-sizes 64 exceeds the 32 images"},
      {"-b 32 --cpu 4 --split-sizes 20", "exceeds the 16 images"},
      {"--schedules pipedream", "none, gpipe, 1f1b, zb-h1"},
      {"--cpu 3", "give a multiple of --pipeline-stages"},
      {"--threads 3", "give a multiple"},
      {"--pipeline-split nowhere", "use some of"},
      {"--gpus 0", "--gpus is not an option of pipeline"}};
  for (const auto& [arguments, fragment] : table) {
    const BenchOutcome outcome =
        run_bench("pipeline --model mnist_convnet --rounds 1 --steps 1 --warmup 1 " + arguments);
    INFO(arguments << ": " << outcome.text);
    CHECK(outcome.code == 2);
    CHECK(outcome.text.starts_with("dp_bench: error: "));
    CHECK(std::ranges::count(outcome.text, '\n') == 1);
    CHECK_THAT(outcome.text, Catch::Contains(fragment));
  }
}

TEST_CASE("pipeline: every case runs, and JSON has its measured, simulated and published rows") {
  const TemporaryFolder folder;
  const json out = run_for_json(
      "pipeline --model mnist_convnet -b 8 --split-sizes 2,4 --schedules none,1f1b,zb-h1 --accumulate --rounds 2 "
      "--steps 1 --warmup 1 --batches 2 --html " +
      (folder / "out.html"));
  CHECK(out.at("command") == "pipeline");
  CHECK_THAT(out.at("facts").at("stages").get<std::string>(), Catch::StartsWith("2 stages at "));
  REQUIRE(out.at("sections").size() == 3);
  const json& rows = out.at("sections").at(0).at("rows");
  CHECK(rows.size() == 2 + 2 + 3 * 2);
  for (const json& row : rows) {
    INFO(row.dump());
    CHECK(row.at("kind") == "measured");
    CHECK(row.at("samples").size() == 2);
    CHECK(row.at("images_per_second").get<double>() == Approx(8e3 / row.at("ms_per_step").get<double>()));
    CHECK(row.at("speed_up_low") <= row.at("speed_up"));
    CHECK(row.at("speed_up") <= row.at("speed_up_high"));
    CHECK(row.at("mib_per_device") > 1);
    const bool pipelined = !row.at("what").get<std::string>().starts_with("single");
    CHECK(row.at("bubble_formula").is_number() == pipelined);
    if (!pipelined) continue;
    CHECK(row.at("bubble") > 0);
    CHECK(row.at("bubble") < 100);
    CHECK(row.at("balance") > 0);
    CHECK(row.at("balance") <= 100);
  }
  // The formulas for two stages and four micro-batches.
  for (const auto& [what, bubble] : {std::pair{"none", 50.0}, {"1f1b", 20.0}, {"zb-h1", 100.0 / 13}}) {
    const auto found = std::ranges::find_if(
        rows, [&, name = what](const json& row) { return row.at("what") == name && row.at("split_size") == 2; });
    REQUIRE(found != rows.end());
    CHECK(found->at("micro_batches") == 4);
    CHECK(found->at("bubble_formula").get<double>() == Approx(bubble));
  }
  const json& simulated = out.at("sections").at(1).at("rows");
  CHECK(simulated.size() == 1 + 3 * 2);
  for (const json& row : simulated) {
    CHECK(row.at("kind") == "modelled");
    CHECK(row.at("ms_per_step") > 0);
  }
  const json& published = out.at("sections").at(2).at("rows");
  CHECK(published.size() == 2);
  for (const json& row : published) {
    CHECK(row.at("kind") == "published");
    CHECK_FALSE(row.contains("samples"));
  }
  const auto& lines = out.at("sections").at(0).at("chart").at("lines");
  CHECK(lines.back().at("label") == "simulated");
  CHECK(std::ranges::count_if(lines, [](const json& line) { return line.at("dashed") == true; }) >= 2);
  CHECK_THAT(read_text(folder / "out.html"), Catch::Contains("\"chart\":{\"x\":\"split size"));
}
