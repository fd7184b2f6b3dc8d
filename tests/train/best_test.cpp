// The checkpoint `best`, and the accuracies in reports.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "train/tiny_run.h"

namespace {

namespace fs = std::filesystem;
using namespace dp;
using dp::test::lines_of;
using dp::test::read_text;
using dp::test::run_until;
using dp::test::TemporaryFolder;
using dp::test::tiny_digits;
using dp::test::tiny_model;
using dp::test::tiny_options;
using dp::test::tiny_run;

// Whether any evaluation of the resumed run was reported as the best.
bool beats(TrainerOptions options) {
  options.resume = "auto";
  bool best = false;
  TrainerCallbacks callbacks;
  callbacks.on_eval = [&](const EvalReport& report) { best = best || report.best; };
  tiny_run(options, callbacks);
  return best;
}

TEST_CASE("`best` is the checkpoint of the best evaluation") {
  const TemporaryFolder temp;
  double best = -1;
  std::int64_t best_step = 0;
  TrainerCallbacks callbacks;
  callbacks.on_eval = [&](const EvalReport& report) {
    CHECK(report.best == (report.stats.accuracy1() > best));
    if (report.best) best = report.stats.accuracy1(), best_step = report.step;
  };
  TrainerOptions options = tiny_options(temp.path());
  options.epochs = 5;
  options.optimizer = Sgd{.lr = 0.2f, .momentum = 0.9f};
  options.schedule.kind = ScheduleKind::constant;
  tiny_run(options, callbacks);
  const Checkpoint checkpoint = load_checkpoint(temp / "checkpoints/best");
  CHECK(checkpoint.state.step == best_step);
  CHECK(checkpoint.state.best_top1 == Approx(best));
}

TEST_CASE("an evaluation that only equals the best is not the best") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp.path());
  options.optimizer = Sgd{.lr = 0, .momentum = 0.9f};
  std::vector<bool> best;
  TrainerCallbacks callbacks;
  callbacks.on_eval = [&](const EvalReport& report) { best.push_back(report.best); };
  Trainer(models::mlp({.hidden = {4}}), tiny_digits(), options).run(callbacks);
  CHECK(best == std::vector<bool>{true, false, false});
  CHECK(load_checkpoint(temp / "checkpoints/best").state.step == 7);
}

TEST_CASE("a resumed run keeps the best of its earlier part until an evaluation beats it") {
  for (const bool average : {false, true}) {
    const TemporaryFolder temp;
    TrainerOptions options = tiny_options(temp.path());
    if (average) options.parallel.ema_decay = 0.5;
    run_until(options, 10);
    REQUIRE(load_checkpoint(temp / "checkpoints/best").state.step == 7);
    const std::string before = read_text(temp / "checkpoints/best/manifest.json");
    Checkpoint last = load_checkpoint(temp / "checkpoints/last");
    CHECK(last.state.best_top1 == load_checkpoint(temp / "checkpoints/best").state.best_top1);
    last.state.best_top1 = 100;  // simulates a perfect accuracy in the first part
    save_checkpoint(temp / "checkpoints/last", last);
    CHECK_FALSE(beats(options));
    CHECK(read_text(temp / "checkpoints/best/manifest.json") == before);
    CHECK(load_checkpoint(temp / "checkpoints/last").state.best_top1 == 100);
  }
  const TemporaryFolder temp;
  run_until(tiny_options(temp.path()), 10);
  Checkpoint last = load_checkpoint(temp / "checkpoints/last");
  last.state.best_top1 = 0;
  save_checkpoint(temp / "checkpoints/last", last);
  CHECK(beats(tiny_options(temp.path())));
  CHECK(load_checkpoint(temp / "checkpoints/best").state.step > 7);
}

struct Hits {
  std::int64_t top1 = 0, top5 = 0, samples = 0;
  double percent1() const { return 100.0 * static_cast<double>(top1) / static_cast<double>(samples); }
  double percent5() const { return 100.0 * static_cast<double>(top5) / static_cast<double>(samples); }
};

// Counts the labels within the top 1 and top 5 logits of their rows.
void count(Hits& hits, const Tensor& logits, const Tensor& labels) {
  const std::int64_t classes = logits.shape()[1];
  for (std::int64_t row = 0; row < logits.shape()[0]; ++row) {
    const float* const scores = logits.data<float>() + row * classes;
    const float own = scores[labels.data<std::int32_t>()[row]];
    const auto larger = std::count_if(scores, scores + classes, [&](float score) { return score > own; });
    hits.top1 += larger < 1;
    hits.top5 += larger < 5;
    ++hits.samples;
  }
}

std::vector<nlohmann::json> records(const std::string& file, const std::string& kind) {
  std::vector<nlohmann::json> found;
  for (const std::string& line : lines_of(read_text(file)))
    if (auto record = nlohmann::json::parse(line); record["kind"] == kind) found.push_back(std::move(record));
  return found;
}

TEST_CASE("top-1 and top-5 of evaluations equal a direct count in reports, metrics and summary") {
  const TemporaryFolder temp;
  Trainer trainer(tiny_model(), tiny_digits(), tiny_options(temp.path()));
  Loader test(tiny_digits().test, {.batch_size = 50, .shuffle = false});
  std::vector<Hits> counted;
  TrainerCallbacks callbacks;
  callbacks.on_eval = [&](const EvalReport& report) {
    Hits& hits = counted.emplace_back();
    for (const Batch& batch : test.epoch(0)) count(hits, trainer.net().predict(batch.images), batch.labels);
    CHECK(report.stats.samples == 130);
    CHECK(report.stats.top1 == hits.top1);
    CHECK(report.stats.top5 == hits.top5);
  };
  const RunSummary summary = trainer.run(callbacks);
  const auto lines = records(temp / "metrics.jsonl", "eval");
  REQUIRE(counted.size() == 3);
  REQUIRE(lines.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(lines[i]["top1"].get<double>() == Approx(counted[i].percent1()));
    CHECK(lines[i]["top5"].get<double>() == Approx(counted[i].percent5()));
    CHECK(counted[i].top5 > counted[i].top1);
    CHECK(counted[i].top5 < 130);
  }
  CHECK(summary.top1 == Approx(counted[2].percent1()));
  CHECK(summary.top5 == Approx(counted[2].percent5()));
  const auto written = nlohmann::json::parse(read_text(temp / "summary.json"));
  CHECK(written["top1"].get<double>() == Approx(counted[2].percent1()));
  CHECK(written["top5"].get<double>() == Approx(counted[2].percent5()));
}

TEST_CASE("top-1 and top-5 of training steps equal a direct count before each step") {
  const TemporaryFolder temp;
  const Model model = models::mlp({.hidden = {24}});  // computes the same in training and evaluation
  const TrainerOptions options = tiny_options(temp.path());
  Trainer trainer(model, tiny_digits(), options);
  DataParallel before(model, options.parallel);
  Loader train(tiny_digits().train, {.batch_size = options.batch_size});
  std::vector<Hits> counted;
  Hits epoch;
  TrainerCallbacks callbacks;
  callbacks.on_step = [&](const StepReport& report) {
    if (report.batch == 0) train.start(report.epoch), epoch = {};
    const Batch& batch = *train.next();
    Hits& hits = counted.emplace_back();
    count(hits, before.predict(batch.images), batch.labels);
    epoch.top5 += hits.top5;
    CHECK(report.recent.top1 == hits.top1);
    CHECK(report.recent.top5 == hits.top5);
    CHECK(report.epoch_so_far.top5 == epoch.top5);
    before.set_weights(trainer.net().weights());
  };
  trainer.run(callbacks);
  const auto lines = records(temp / "metrics.jsonl", "train");
  REQUIRE(lines.size() == counted.size());
  for (std::size_t i = 0; i < lines.size(); ++i) {
    CHECK(lines[i]["top1"].get<double>() == Approx(counted[i].percent1()));
    CHECK(lines[i]["top5"].get<double>() == Approx(counted[i].percent5()));
  }
}

}  // namespace
