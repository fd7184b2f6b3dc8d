// Training with mixed images, weighted classes, and a loss and metrics of the program's own.
#include <algorithm>
#include <cmath>
#include <filesystem>

#include "engine/train/console.h"
#include "support/catch.h"
#include "train/expect_error.h"
#include "train/ink_run.h"
#include "train/tiny_run.h"

using namespace dp;
using namespace dp::test;

namespace {

TrainerOptions mixing(const std::string& folder = "") {
  TrainerOptions options = tiny_options(folder);
  options.mixup_alpha = 0.4;
  options.cutmix_alpha = 1;
  options.parallel.label_smoothing = 0.1f;
  options.class_weights = {1, 2, 1, 1, 0.5f, 1, 1, 3, 1, 1};
  return options;
}

}  // namespace

TEST_CASE("a run with mixed images resumes inside an epoch to the same bits, and evaluates without mixing") {
  const RunSummary whole = tiny_run(mixing());
  for (const std::int64_t step : {3, 7, 16}) {
    INFO("stopped after step " << step);
    const TemporaryFolder temp;
    TrainerOptions options = mixing(temp.path());
    CHECK(run_until(options, step).steps == step);
    options.resume = "auto";
    const RunSummary resumed = tiny_run(options);
    CHECK(resumed.weights_sha256 == whole.weights_sha256);
    CHECK(resumed.test_loss == whole.test_loss);
  }
  TrainerOptions plain = mixing();
  plain.epochs = 1;
  plain.optimizer = Sgd{.lr = 0};
  const RunSummary mixed = tiny_run(plain);
  plain.mixup_alpha = plain.cutmix_alpha = 0, plain.class_weights.clear(), plain.parallel.label_smoothing = 0;
  const RunSummary unmixed = tiny_run(plain);
  CHECK(mixed.train_loss != unmixed.train_loss);
  CHECK(std::abs(mixed.test_loss - unmixed.test_loss) < 0.02);  // the running statistics differ
}

TEST_CASE("mixed images give the same bits on any number of replicas and loader threads") {
  const auto digest = [](int replicas, int workers) {
    TrainerOptions options = mixing();
    options.epochs = 1;
    options.parallel.devices = cpus(replicas);
    options.parallel.logical_shards = 4;
    options.workers = workers;
    return tiny_run(options).weights_sha256;
  };
  const std::string one = digest(1, 1);
  CHECK(digest(2, 3) == one);
  CHECK(digest(4, 1) == one);
}

TEST_CASE("balanced weights of classes are images / (classes * images of the class)") {
  std::vector<double> counts(10);
  const DatasetPair& data = tiny_digits();
  for (std::int64_t i = 0; i < data.train->size(); ++i) ++counts[static_cast<std::size_t>(data.train->label(i))];
  TrainerOptions options = tiny_options();
  options.epochs = 1;
  const std::string plain = tiny_run(options).weights_sha256;
  for (const double count : counts)
    options.class_weights.push_back(static_cast<float>(static_cast<double>(data.train->size()) / (10 * count)));
  const std::string weighted = tiny_run(options).weights_sha256;
  options.class_weights.clear();
  options.balance_classes = true;
  CHECK(tiny_run(options).weights_sha256 == weighted);
  CHECK(weighted != plain);
}

TEST_CASE("equal weights of classes train as none") {
  TrainerOptions options = tiny_options();
  options.epochs = 1;
  options.parallel.label_smoothing = 0.1f;
  const RunSummary plain = tiny_run(options);
  options.class_weights.assign(10, 3.0f);
  const RunSummary weighted = tiny_run(options);
  CHECK(weighted.train_loss == Approx(plain.train_loss).epsilon(1e-5));
  CHECK(weighted.test_loss == Approx(plain.test_loss).epsilon(1e-4));
  CHECK(weighted.weights_sha256 != plain.weights_sha256);  // another op computed the loss
}

TEST_CASE("mixing is refused for targets and for device-resident images, and weights must fit the classes") {
  TrainerOptions options = tiny_options();
  options.mixup_alpha = 0.2;
  options.images_on = ImagesOn::device;
  expect_error(ErrorCode::usage, {"--mixup-alpha does not work with a device-resident data set; use --images-on host"},
               [&] { Trainer(tiny_model(), tiny_digits(), options); });
  options.images_on = ImagesOn::automatic;
  options.mixup_alpha = 4.5;
  expect_error(ErrorCode::usage, {"--mixup-alpha is 4.5"}, [&] { Trainer(tiny_model(), tiny_digits(), options); });
  options.mixup_alpha = 0;
  options.class_weights = {1, 2};
  expect_error(ErrorCode::usage, {"2 weights of classes do not fit the 10 classes of the data set"},
               [&] { tiny_run(options); });
  TrainerOptions targets = ink_options();
  targets.cutmix_alpha = 1;
  expect_error(ErrorCode::usage, {"--mixup-alpha, --cutmix-alpha and --class-weights are for class numbers"},
               [&] { Trainer(ink_model(), ink(), targets); });
}

TEST_CASE("a run with a loss of the program's own reports it, and resumes to the same bits") {
  const OwnLoss squares{"squares", "", [](const Tensor& outputs, const Batch& batch) {
                          Tensor targets(outputs.shape());
                          for (std::int64_t n = 0; n < outputs.shape()[0]; ++n)
                            targets.data<float>()[10 * n + batch.labels.data<std::int32_t>()[n]] = 1;
                          return output_loss(MseLoss{}, outputs, targets);
                        }};
  TrainerOptions options = tiny_options();
  options.parallel.own_loss = squares;
  const RunSummary whole = tiny_run(options);
  CHECK(whole.test_loss < 0.1);  // that of cross-entropy would be above 1
  CHECK(whole.top1 > 20);        // chance: 10
  TrainerOptions measured = options;
  measured.epochs = 1;
  measured.metrics = {{"evaluated", [](const EvaluatedLogits& all) {
                         return all.logits.shape()[0] == 130 && all.labels.size() == 130
                                    ? static_cast<double>(std::ranges::max(all.samples))
                                    : -1.0;
                       }}};
  CHECK(tiny_run(measured).metrics.at(0).value == 129);
  measured.class_weights.assign(10, 1);
  expect_error(ErrorCode::usage,
               {"--own-loss excludes --mixup-alpha, --cutmix-alpha, --class-weights and --sample-weights"},
               [&] { Trainer(tiny_model(), tiny_digits(), measured); });
  const TemporaryFolder temp;
  options.output_dir = temp.path();
  CHECK(run_until(options, 9).steps == 9);
  options.resume = "auto";
  CHECK(tiny_run(options).weights_sha256 == whole.weights_sha256);
  options = tiny_options();
  options.parallel.own_loss = squares;
  options.images_on = ImagesOn::device;
  expect_error(ErrorCode::usage, {"--own-loss does not work with a device-resident data set"},
               [&] { Trainer(tiny_model(), tiny_digits(), options); });
}

TEST_CASE("metrics of the program's own are computed from the outputs of each evaluation, and recorded") {
  const auto hits = [](const EvaluatedLogits& evaluated) {
    double count = 0;
    for (std::size_t n = 0; n < evaluated.labels.size(); ++n) {
      const float* const row = evaluated.logits.data<float>() + 10 * n;
      count += std::max_element(row, row + 10) - row == evaluated.labels[n];
    }
    return 100 * count / static_cast<double>(evaluated.labels.size());
  };
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp.path());
  options.metrics = {{"hits", hits}, {"samples", [](const EvaluatedLogits& evaluated) {
                                        return static_cast<double>(evaluated.samples.size());
                                      }}};
  std::vector<std::string> lines;
  TrainerCallbacks callbacks;
  callbacks.on_eval = [&](const EvalReport& report) {
    REQUIRE(report.metrics.size() == 2);
    CHECK(report.metrics[0].value == Approx(report.stats.accuracy1()));
    CHECK(report.metrics[1].value == 130);
    lines.push_back(eval_line(report.stats, 10, report.metrics));
  };
  const RunSummary summary = tiny_run(options, callbacks);
  CHECK(lines.size() == 3);
  CHECK_THAT(lines.back(),
             Catch::StartsWith("Test: Acc@1 ") && Catch::Contains(" hits ") && Catch::Contains(" samples 130  loss "));
  CHECK_THAT(read_text(temp / "metrics.jsonl"), Catch::Contains("\"samples\":130.0"));
  CHECK_THAT(to_json(summary), Catch::Contains("\"hits\":"));
  CHECK(std::filesystem::exists(temp / "predictions.json"));  // the report has the same outputs
}

TEST_CASE("a metric must have a function and a name of its own") {
  TrainerOptions options = tiny_options();
  options.metrics = {{"empty", {}}};
  expect_error(ErrorCode::usage, {"metric 'empty' cannot be added; it has no function"},
               [&] { Trainer(tiny_model(), tiny_digits(), options); });
  const auto zero = [](const EvaluatedLogits&) { return 0.0; };
  for (const char* taken : {"loss", "train_loss", "devices", "grad_norm", "end", "map"})
    expect_error(ErrorCode::usage,
                 {std::string("metric '") + taken + "' cannot be added; records have a field of this name"}, [&] {
                   metrics::add({taken, zero});
                 });
  options.metrics = {{"top1", zero}};
  expect_error(ErrorCode::usage, {"metric 'top1' cannot be added"},
               [&] { Trainer(tiny_model(), tiny_digits(), options); });
  metrics::add({"zero", zero});
  expect_error(ErrorCode::usage, {"metric 'zero' exists already"}, [&] { metrics::add({"zero", zero}); });
  CHECK(metrics::registry().size() == 1);
}
