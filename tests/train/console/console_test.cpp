// The exact console lines and summary keys.
#include "engine/train/console.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "dp/dataset.h"
#include "engine/train/record/records.h"
#include "support/catch.h"

namespace {

dp::StepReport report() {
  dp::StepReport report;
  report.epoch = 0, report.batch = 10, report.batches = 391, report.step = 11;
  report.lr = 0.1;
  report.images_per_second = 9843.4;
  report.eta_seconds = 12;
  report.loading_share = 0.02;
  report.recent = {.loss_sum = 441, .samples = 100, .top1 = 4, .top5 = 10};
  report.epoch_so_far = {.loss_sum = 4520, .samples = 1000, .top1 = 28, .top5 = 90};
  report.phases.assign(2, {});
  report.phases[1].forward = 0.5;
  return report;
}

TEST_CASE("progress lines look like torchvision's, and show the share of time spent waiting for data") {
  CHECK(dp::step_line(report()) ==
        "Epoch: [0]  [ 10/391]  eta: 0:00:12  lr: 0.1  img/s: 9843  data: 2 %  loss: 4.41 (4.52)  acc1: 4.0 (2.8)");
}

TEST_CASE("a loss that is not a number is printed without a sign") {
  for (const double sign : {1.0, -1.0}) {
    dp::StepReport nan = report();
    nan.recent.loss_sum = nan.epoch_so_far.loss_sum = std::copysign(std::nan(""), sign);
    CHECK_THAT(dp::step_line(nan), Catch::Contains("  loss: nan (nan)"));
    dp::EpochReport epoch;
    epoch.train = epoch.test.emplace().stats = nan.recent;
    CHECK_THAT(dp::epoch_line(epoch, 10, 0), Catch::Contains("nan") && !Catch::Contains("-nan"));
    CHECK_THAT(dp::eval_line(nan.recent, 10), Catch::Contains("nan") && !Catch::Contains("-nan"));
  }
}

TEST_CASE("a progress line fits every terminal, and the loss is among the last columns to go") {
  CHECK(dp::step_line(report(), 0, 200) ==
        "Epoch: [0]  [ 10/391]  [>                   ]  eta: 0:00:12  lr: 0.1  img/s: 9843  data: 2 %  "
        "loss: 4.41 (4.52)  acc1: 4.0 (2.8)");
  CHECK(dp::step_line(report(), 0, 110) == dp::step_line(report()));
  CHECK(dp::step_line(report(), 0.71, 80) ==
        "Epoch 0 [ 10/391]  0:00:12 left  9843 img/s  floor 71 %  loss 4.52  acc1 2.8");
  CHECK(dp::step_line(report(), 0, 80) == "Epoch 0 [ 10/391]  0:00:12 left  9843 img/s  data 2 %  loss 4.52  acc1 2.8");
  CHECK(dp::step_line(report(), 0.71, 50) == "Epoch 0 [ 10/391]  loss 4.52  acc1 2.8");
  for (int width = 1; width < 150; ++width) CHECK(dp::step_line(report(), 0.5, width).size() < std::size_t(width));
}

TEST_CASE("the progress line shows how close the steps are to their floor, if that is known") {
  CHECK_THAT(dp::step_line(report(), 0.714), Catch::Contains("  img/s: 9843  floor: 71 %  data: 2 %"));
  CHECK_THAT(dp::step_line(report(), 0), !Catch::Contains("floor"));
}

TEST_CASE("a bar fills from the first step to the last") {
  dp::StepReport last = report();
  last.batch = 390;
  CHECK_THAT(dp::step_line(last, 0, 200), Catch::Contains("  [390/391]  [====================]  "));
  last.batch = 194;
  CHECK_THAT(dp::step_line(last, 0, 200), Catch::Contains("[=========>          ]"));
}

TEST_CASE("test lines look like torchvision's, without Acc@5 where it says nothing") {
  const dp::Stats stats{.loss_sum = 9.12, .samples = 10, .top1 = 7, .top5 = 9};
  CHECK(dp::eval_line(stats, 10) == "Test: Acc@1 70.000 Acc@5 90.000  loss 0.912");
  CHECK(dp::eval_line(stats, 5) == "Test: Acc@1 70.000  loss 0.912");
  CHECK(dp::work_line({"Test", 7, 79}) == "Test: [ 7/79]");
  CHECK(dp::work_line({"Test", 7, 79}, 80) == "Test: [ 7/79]  [=>                  ]");
  CHECK(dp::work_line({"Test", 7, 79}, 20) == "Test: [ 7/79]");
  CHECK(dp::work_line({"Planning layers"}, 80) == "Planning layers ...");
}

TEST_CASE("an epoch is one line: training, test, time, speed and rate") {
  dp::EpochReport epoch{.epoch = 3, .seconds = 8.21, .images_per_second = 5057.4, .lr = 0.05};
  epoch.train = {.loss_sum = 3.03, .samples = 10, .top1 = 9, .top5 = 10};
  CHECK(dp::epoch_line(epoch, 10) == "Epoch 3: train loss 0.303  8.2 s  5057 img/s  lr 0.05");
  epoch.test = dp::EvalReport{.stats = {.loss_sum = 9.12, .samples = 10, .top1 = 7, .top5 = 9}};
  CHECK(dp::epoch_line(epoch, 10) ==
        "Epoch 3: train loss 0.303  Test: Acc@1 70.000 Acc@5 90.000  loss 0.912  8.2 s  5057 img/s  lr 0.05");
  epoch.average = epoch.test;
  CHECK_THAT(dp::epoch_line(epoch, 3), Catch::Contains("  EMA Test: Acc@1 70.000  loss 0.912  8.2 s"));
  // On a narrow terminal the least important columns are dropped.
  epoch.average.reset();
  CHECK(dp::epoch_line(epoch, 10, 80) ==
        "Epoch 3: train loss 0.303  Test: Acc@1 70.000  loss 0.912  8.2 s  5057 img/s");
  CHECK(dp::epoch_line(epoch, 10, 50) == "Epoch 3: Test: Acc@1 70.000  loss 0.912");
  // A resumed run may only evaluate.
  CHECK(dp::epoch_line({.epoch = 3, .test = epoch.test}, 3) == "Epoch 3: Test: Acc@1 70.000  loss 0.912");
}

TEST_CASE("the data set's line counts images and classes") {
  CHECK(dp::describe_data(dp::datasets::synthetic({1, 4, 4}, 3, 1200, 60, 1))
            .starts_with("data: 1,200 training and 60 test images\n3 classes of "));
}

TEST_CASE("a training record names every phase of every replica") {
  const auto json = dp::to_record(report());
  CHECK(json["kind"] == "train");
  CHECK(json["step"] == 11);
  CHECK(json["loss"].get<double>() == Approx(4.41));
  CHECK(json["top1"].get<double>() == Approx(4));
  REQUIRE(json["phases"].size() == 2);
  for (const dp::Phase& phase : dp::phases()) CHECK(json["phases"][0].contains(phase.name));
  CHECK(json["phases"][1]["forward"].get<double>() == 0.5);
}

TEST_CASE("phases are added up replica by replica") {
  std::vector<dp::PhaseTimes> sum;
  dp::add(sum, report().phases);
  dp::add(sum, report().phases);
  REQUIRE(sum.size() == 2);
  CHECK(sum[0].forward == 0);
  CHECK(sum[1].forward == 1);
  const std::string table = dp::phase_table({"cpu", "cuda:1"}, sum);
  CHECK_THAT(table, Catch::StartsWith("seconds     replica 0  replica 1\n                  cpu     cuda:1\n"
                                      "scatter          0.00       0.00\nforward          0.00       1.00\n"));
  CHECK(table.find("graph") == std::string::npos);
  sum[1].graph = 0.25;
  CHECK(dp::phase_table({"cpu", "cuda:1"}, sum).find("\ngraph") != std::string::npos);
}

TEST_CASE("a table of many replicas is split so that it fits the terminal") {
  const std::vector<dp::PhaseTimes> times(9);
  for (const int width : {0, 30, 50, 80, 200}) {
    std::istringstream table(dp::phase_table(std::vector<std::string>(9, "NVIDIA H100 80GB HBM3"), times, width));
    int blocks = 0;
    for (std::string line; std::getline(table, line); blocks += line.starts_with("seconds"))
      CHECK(line.size() <= std::size_t(width == 0 ? 98 : width));
    CHECK(blocks == (width == 0 ? 2 : (9 + (width - 10) / 11 - 1) / ((width - 10) / 11)));
  }
}

TEST_CASE("long lines are broken at spaces, rows of tables are not") {
  CHECK(dp::wrapped("one two three\nfour\n", 0) == "one two three\nfour\n");
  CHECK(dp::wrapped("one two three\nfour\n", 10) == "one two\n  three\nfour\n");
  CHECK(dp::wrapped("one two three", 8) == "one two\n  three");
  CHECK(dp::wrapped("one    two three", 8) == "one    two three");
  CHECK(dp::wrapped("/a/word/that/is/too/wide", 8) == "/a/word/that/is/too/wide");
}

TEST_CASE("summary.json has exactly its documented keys, in order") {
  dp::RunSummary summary;
  summary.model = "m\x1b";
  summary.devices = {"cpu", "cpu"};
  summary.top1 = 98.25;
  const auto json = nlohmann::ordered_json::parse(dp::to_json(summary));
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  CHECK(keys ==
        std::vector<std::string>{
            "model",          "dataset",           "engine",       "devices",   "communicator", "communicator_reason",
            "graphs",         "graphs_reason",     "global_batch", "epochs",    "steps",        "skipped_steps",
            "seconds_train",  "images_per_second", "train_loss",   "test_loss", "top1",         "top5",
            "weights_sha256", "checkpoint",        "interrupted",  "end"});
  CHECK(json["engine"] == "dp");
  CHECK(json["devices"].size() == 2);
  CHECK(json["top1"] == 98.25);
  CHECK(dp::to_json(summary).find('\n') == std::string::npos);
}

TEST_CASE("the closing text names the run folder and the command that continues the run") {
  dp::RunSummary summary;
  summary.output_dir = "runs/x";
  CHECK(dp::summary_text(summary).find("run folder runs/x") != std::string::npos);
  CHECK(dp::summary_text(summary).find("Interrupted") == std::string::npos);
  summary.interrupted = true;
  CHECK_THAT(dp::summary_text(summary), Catch::EndsWith("continue with --resume runs/x\n"));
  CHECK_THAT(dp::summary_text(summary, "--cpu 3"), Catch::EndsWith("continue with --resume runs/x --cpu 3\n"));
  CHECK(dp::summary_text(summary).find("Acc@1") == std::string::npos);
}

}  // namespace
