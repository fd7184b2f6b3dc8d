// Test-time augmentation: the views, the average of their outputs, and the figures that a run reports.
#include "engine/train/views.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "dp/run_options.h"
#include "support/catch.h"
#include "support/training.h"
#include "train/ink_run.h"

using namespace dp;
using namespace dp::test;

namespace {

std::vector<float> view(const View& of, const Shape& shape) {
  Tensor images(shape), out(shape);
  std::iota(images.span<float>().begin(), images.span<float>().end(), 1.0f);
  copy_view(of, images, out);
  return {out.span<float>().begin(), out.span<float>().end()};
}

// The mean of the outputs of each view, weighted, from predict() on one replica.
std::vector<double> expected_means(DataParallel& net, const Batch& batch, TestAugmentation augmentation) {
  std::vector<double> means(static_cast<std::size_t>(batch.size() * net.model().output().numel()));
  Tensor images(batch.images.shape());
  for (const View& one : views_of(augmentation)) {
    copy_view(one, batch.images, images);
    const Tensor outputs = net.predict(images).clone();
    for (std::size_t i = 0; i < means.size(); ++i)
      means[i] += one.weight * static_cast<double>(outputs.data<float>()[i]);
  }
  return means;
}

DataParallelOptions deterministic(int replicas, int shards = 0) {
  DataParallelOptions options{.devices = cpus(replicas), .threads_per_replica = 1};
  options.logical_shards = shards;
  return options;
}

}  // namespace

TEST_CASE("the views of an image are those of airbench: mirrored, moved by a pixel with reflected borders, or both") {
  const Shape shape{1, 1, 3, 4};
  using Values = std::vector<float>;
  CHECK(view({0, false}, shape) == Values{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  CHECK(view({0, true}, shape) == Values{4, 3, 2, 1, 8, 7, 6, 5, 12, 11, 10, 9});
  // torch.nn.functional.pad(x, (1, 1, 1, 1), 'reflect')[..., :3, :4] and [..., 2:, 2:]
  CHECK(view({-1, false}, shape) == Values{6, 5, 6, 7, 2, 1, 2, 3, 6, 5, 6, 7});
  CHECK(view({1, false}, shape) == Values{6, 7, 8, 7, 10, 11, 12, 11, 6, 7, 8, 7});
  CHECK(view({-1, true}, shape) == Values{7, 6, 5, 6, 3, 2, 1, 2, 7, 6, 5, 6});
  CHECK(view({1, true}, {2, 1, 1, 2}) == Values{1, 2, 3, 4});
  CHECK(view({1, true}, {1, 2, 1, 1}) == Values{1, 2});
  for (const auto& [augmentation, count] :
       {std::pair(TestAugmentation::none, 1u), {TestAugmentation::flip, 2u}, {TestAugmentation::flip_translate, 6u}}) {
    double weights = 0;
    for (const View& one : views_of(augmentation)) weights += one.weight;
    CHECK(views_of(augmentation).size() == count);
    CHECK(weights == 1);
  }
}

TEST_CASE("averaged outputs are the means of those of the views, with the loss and accuracies of the means") {
  const Model model = small_convnet();
  for (const TestAugmentation augmentation : {TestAugmentation::flip, TestAugmentation::flip_translate})
    for (const int replicas : {1, 2, 3}) {
      INFO(replicas << " replicas, " << views_of(augmentation).size() << " views");
      DataParallel net(model, deterministic(replicas)), one(model, deterministic(1));
      ViewEvaluation views(net, augmentation, 9, /*keeps=*/true);
      Stats expected;
      std::vector<double> means;
      for (const std::int64_t rows : {9, 4}) {
        const Batch batch = random_batch(model, rows, static_cast<std::uint64_t>(rows));
        views.evaluate(batch);
        const auto of_batch = expected_means(one, batch, augmentation);
        Tensor averaged(Shape{rows, 7});
        std::ranges::transform(of_batch, averaged.data<float>(), [](double mean) { return static_cast<float>(mean); });
        means.insert(means.end(), of_batch.begin(), of_batch.end());
        expected.samples += rows;
        expected.loss_sum += cross_entropy(averaged, batch.labels).value * static_cast<double>(rows);
        for (std::int64_t n = 0; n < rows; ++n) {
          const float* const row = averaged.data<float>() + 7 * n;
          const auto before =
              std::count_if(row, row + 7, [&](float x) { return x > row[batch.labels.data<std::int32_t>()[n]]; });
          expected.top1 += before < 1, expected.top5 += before < 5;
        }
      }
      Stats stats = net.take_stats();
      CHECK(stats.samples == 13 * static_cast<std::int64_t>(views_of(augmentation).size()));
      views.set_totals(stats, nullptr);
      CHECK(stats.samples == expected.samples);
      CHECK(stats.loss_sum == Approx(expected.loss_sum).epsilon(1e-6));
      CHECK(stats.top1 == expected.top1);
      CHECK(stats.top5 == expected.top5);
      const EvaluatedLogits outputs = views.take_outputs();
      REQUIRE(outputs.logits.shape() == Shape{13, 7});
      CHECK(outputs.samples.size() == 13);
      CHECK(outputs.labels.size() == 13);
      double worst = 0;
      for (std::size_t i = 0; i < means.size(); ++i)
        worst = std::max(worst, std::abs(static_cast<double>(outputs.logits.data<float>()[i]) - means[i]));
      CHECK(worst < 1e-5);
      CHECK(views.take_outputs().samples.empty());
    }
}

TEST_CASE("equal views give the bits of an evaluation without them") {
  const Model model = small_convnet();
  DataParallel net(model, deterministic(1));
  Batch batch = random_batch(model, 9);
  for (std::int64_t row = 0; row < batch.images.numel() / 12; ++row)
    for (int x = 0; x < 6; ++x) {
      float* const pixels = batch.images.data<float>() + row * 12;
      pixels[11 - x] = pixels[x];
    }
  net.evaluate(batch);
  const Stats plain = net.take_stats();
  ViewEvaluation views(net, TestAugmentation::flip, 9, false);
  views.evaluate(batch);
  Stats stats = net.take_stats();
  views.set_totals(stats, nullptr);
  CHECK(stats.loss_sum == plain.loss_sum);
  CHECK(stats.top1 == plain.top1);
  CHECK(stats.top5 == plain.top5);
  CHECK(views.take_outputs().samples.empty());  // they are not kept
}

TEST_CASE("a run with --tta has the same bits on any number of replicas, and from device-resident images") {
  const auto run = [](int replicas, ImagesOn images_on, TestAugmentation augmentation = TestAugmentation::flip) {
    TrainerOptions options = tiny_options();
    options.epochs = 1;
    options.parallel.devices = cpus(replicas);
    options.parallel.logical_shards = 4;
    options.images_on = images_on;
    options.test_augmentation = augmentation;
    return tiny_run(options);
  };
  const RunSummary one = run(1, ImagesOn::host), plain = run(1, ImagesOn::host, TestAugmentation::none);
  CHECK(one.weights_sha256 == plain.weights_sha256);
  CHECK(one.test_loss != plain.test_loss);
  for (const int replicas : {2, 4}) {
    CHECK(run(replicas, ImagesOn::host).test_loss == one.test_loss);
    CHECK(run(replicas, ImagesOn::device).test_loss == one.test_loss);
  }
  const RunSummary six = run(2, ImagesOn::host, TestAugmentation::flip_translate);
  CHECK(six.test_loss != one.test_loss);
  CHECK(run(4, ImagesOn::host, TestAugmentation::flip_translate).test_loss == six.test_loss);
}

TEST_CASE("evaluations while training, of the last checkpoint, its page and the program's metrics use the same views") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp / "run");
  options.test_augmentation = TestAugmentation::flip;
  std::vector<Tensor> outputs;
  options.metrics = {{"kept", [&](const EvaluatedLogits& evaluated) {
                        outputs.push_back(evaluated.logits.clone());
                        return static_cast<double>(evaluated.labels.size());
                      }}};
  const RunSummary trained = tiny_run(options);
  CHECK(trained.metrics.at(0).value == 130);
  CHECK_THAT(read_text(temp / "run/config.toml"), Catch::Contains("tta = \"flip\"\n"));
  const auto predictions = nlohmann::json::parse(read_text(temp / "run/predictions.json"));
  std::int64_t right = 0;
  for (std::size_t i = 0; i < 10; ++i) right += predictions.at("confusion").at(i).at(i).get<std::int64_t>();
  CHECK(100.0 * static_cast<double>(right) / 130 == Approx(trained.top1));

  TrainerOptions again = tiny_options();
  again.resume = temp / "run";
  again.test_augmentation = options.test_augmentation;
  Trainer trainer(tiny_model(), tiny_digits(), again);
  const RunSummary evaluated = trainer.evaluate();
  CHECK(evaluated.test_loss == trained.test_loss);
  CHECK(evaluated.top1 == trained.top1);
  REQUIRE(outputs.size() == 3);
  CHECK(outputs.back().shape() == Shape{130, 10});
}

TEST_CASE("losses of targets and of the program's own, and the moving average, are evaluated from averaged outputs") {
  TrainerOptions options = ink_options();
  options.epochs = 1;
  const RunSummary plain = Trainer(ink_model(), ink(), options).run();
  options.test_augmentation = TestAugmentation::flip;
  options.parallel.ema_decay = 0.5f;
  const RunSummary summary = Trainer(ink_model(), ink(), options).run();
  REQUIRE(summary.metrics.size() == 3);
  CHECK(summary.metrics[1].value == Approx(std::sqrt(summary.test_loss)));  // rmse
  CHECK(summary.test_loss != plain.test_loss);
  CHECK(std::isnan(summary.top1));

  TrainerOptions own = tiny_options();
  own.epochs = 1;
  own.test_augmentation = TestAugmentation::flip;
  const RunSummary built_in = tiny_run(own);
  own.parallel.own_loss = OwnLoss{
      "same", "", [](const Tensor& outputs, const Batch& batch) { return cross_entropy(outputs, batch.labels); }};
  const RunSummary of_own = tiny_run(own);
  CHECK(of_own.test_loss == Approx(built_in.test_loss).epsilon(1e-4));
  CHECK(of_own.top1 == Approx(built_in.top1).margin(1));
}
