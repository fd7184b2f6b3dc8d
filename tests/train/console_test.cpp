// The exact console lines and summary keys.
#include "engine/train/console/console_text.h"

#include <nlohmann/json.hpp>

#include "engine/train/records.h"
#include "support/catch.h"

namespace {

dp::StepReport report() {
  dp::StepReport report;
  report.epoch = 0, report.batch = 10, report.batches = 391, report.step = 11;
  report.lr = 0.1;
  report.images_per_second = 9843.4;
  report.eta_seconds = 12;
  report.recent = {.loss_sum = 441, .samples = 100, .top1 = 4, .top5 = 10};
  report.epoch_so_far = {.loss_sum = 4520, .samples = 1000, .top1 = 28, .top5 = 90};
  report.phases.assign(2, {});
  report.phases[1].forward = 0.5;
  return report;
}

TEST_CASE("progress lines look like torchvision's") {
  CHECK(dp::step_line(report()) ==
        "Epoch: [0]  [ 10/391]  eta: 0:00:12  lr: 0.1  img/s: 9843  loss: 4.41 (4.52)  acc1: 4.0 (2.8)");
}

TEST_CASE("test lines look like torchvision's") {
  CHECK(dp::eval_line({.loss_sum = 9.12, .samples = 10, .top1 = 7, .top5 = 9}) ==
        "Test: Acc@1 70.000 Acc@5 90.000  loss 0.912");
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
  CHECK(table.find("replica 1 cuda:1") != std::string::npos);
  CHECK(table.find("1.00") != std::string::npos);
  CHECK(table.find(" graph") == std::string::npos);
  sum[1].graph = 0.25;
  CHECK(dp::phase_table({"cpu", "cuda:1"}, sum).find(" graph") != std::string::npos);
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
            "weights_sha256", "checkpoint",        "interrupted"});
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
  CHECK(dp::summary_text(summary).find("--resume runs/x") != std::string::npos);
  CHECK(dp::summary_text(summary).find("Acc@1") == std::string::npos);
}

}  // namespace
