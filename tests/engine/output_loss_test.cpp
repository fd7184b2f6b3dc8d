// Losses of outputs with targets of their own, and losses of a program's own: the engine against the losses on the
// host, on every kind of device.
#include <cmath>
#include <cstring>
#include <functional>

#include "dp/error.h"
#include "support/catch.h"
#include "support/tested_kinds.h"
#include "support/training.h"

using namespace dp;
using namespace dp::test;

namespace {

Batch targeted_batch(const Model& model, std::int64_t rows, std::uint64_t seed = 1) {
  Batch batch = random_batch(model, rows, seed);
  batch.labels = {};
  batch.targets = Tensor(model.output().prepended(rows));
  Random random(seed + 100, RandomUse::synthetic);
  for (float& target : batch.targets.span<float>()) target = random.uniform(0, 1);
  return batch;
}

DataParallelOptions on(DeviceKind kind, int replicas, const OutputLoss& loss) {
  DataParallelOptions options = on_cpus(replicas);
  options.devices.assign(static_cast<std::size_t>(replicas), Device{kind, 0});
  options.deterministic = true;
  options.output_loss = loss;
  return options;
}

const Sgd kSgd{.lr = 0.1f, .momentum = 0.9f};

std::vector<NamedTensor> trained(const Model& model, const DataParallelOptions& options) {
  DataParallel net(model, options);
  for (std::uint64_t step = 0; step < 3; ++step) net.train_step(targeted_batch(model, 13, step), kSgd);
  return net.weights();
}

void check_bits(const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    INFO(a[i].first);
    REQUIRE(a[i].second.bytes() == b[i].second.bytes());
    CHECK(std::memcmp(a[i].second.raw(), b[i].second.raw(), a[i].second.bytes()) == 0);
  }
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::usage);
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("a training step with a loss of outputs is forward(), output_loss(), backward() and step()") {
  const Model model = small_convnet();
  for (const OutputLoss& loss : {OutputLoss{MseLoss{}}, OutputLoss{HuberLoss{0.3f}}, OutputLoss{BceWithLogitsLoss{3}},
                                 OutputLoss{SoftCrossEntropyLoss{}}})
    for (const DeviceKind kind : tested_kinds())
      for (const int replicas : {1, 3})
        for (const LossAt at : {LossAt::local, LossAt::gathered}) {
          INFO(name_of(loss) << " on " << replicas << " x " << to_string(Device{kind, 0}) << ", at the "
                             << (at == LossAt::local ? "replicas" : "master"));
          DataParallelOptions options = on(kind, replicas, loss);
          DataParallel parts(model, options);
          options.loss = at;
          DataParallel net(model, options);
          const Batch batch = targeted_batch(model, 10);
          net.train_step(batch, kSgd);
          const Loss expected = output_loss(loss, parts.forward(batch.images), batch.targets);
          parts.backward(expected.grad);
          parts.step(kSgd);
          const Worst worst = worst_error(net.weights(), parts.weights());
          INFO(worst.name);
          CHECK(worst.error <= 1e-6);
          const Stats stats = net.take_stats();
          CHECK(stats.samples == 10);
          CHECK(stats.loss() == Approx(expected.value).epsilon(1e-6));
          CHECK((stats.top1 == 0 || std::holds_alternative<SoftCrossEntropyLoss>(loss)));
        }
}

TEST_CASE("weights trained with a loss of outputs are bitwise equal on any number of replicas and with micro-batches") {
  const Model model = small_convnet();
  for (const DeviceKind kind : tested_kinds()) {
    if (kind == DeviceKind::reference) continue;
    INFO(to_string(Device{kind, 0}));
    const auto of = [&](int replicas) {
      DataParallelOptions options = on(kind, replicas, HuberLoss{0.3f});
      options.logical_shards = 4;
      options.grad_accum_steps = 2;
      return trained(model, options);
    };
    const auto one = of(1);
    check_bits(of(2), one);
    check_bits(of(4), one);
  }
}

TEST_CASE("a pipeline computes a loss of outputs in its last stage, with the same bits") {
  const Model model = residual_net();
  DataParallelOptions options = on(DeviceKind::cpu, 1, BceWithLogitsLoss{});
  options.grad_accum_steps = 2;
  const auto one = trained(model, options);
  options.devices.assign(2, Device{DeviceKind::cpu, 0});
  options.pipeline.stages = 2;
  check_bits(trained(model, options), one);
}

TEST_CASE("evaluate() adds the loss of outputs, and take_logits() returns the targets") {
  const Model model = small_convnet();
  for (const DeviceKind kind : tested_kinds())
    for (const int replicas : {1, 3}) {
      INFO(replicas << " x " << to_string(Device{kind, 0}));
      DataParallel net(model, on(kind, replicas, MseLoss{}));
      const Batch batch = targeted_batch(model, 9);
      REQUIRE(net.store_logits(1, 9));
      net.evaluate(batch);
      const EvaluatedLogits stored = net.take_logits();
      const Loss expected = output_loss(MseLoss{}, net.predict(batch.images), batch.targets);
      CHECK(net.take_stats().loss() == Approx(expected.value).epsilon(1e-6));
      CHECK(stored.labels.empty());
      REQUIRE(stored.targets.shape() == batch.targets.shape());
      const std::int64_t outputs = model.output().numel();
      for (std::int64_t row = 0; row < 9; ++row) {
        const std::int64_t from = (stored.samples[static_cast<std::size_t>(row)] - 1000) / 7;
        for (std::int64_t k = 0; k < outputs; ++k)
          CHECK(stored.targets.data<float>()[row * outputs + k] == batch.targets.data<float>()[from * outputs + k]);
      }
    }
}

TEST_CASE("the memory estimate with a loss of outputs equals the memory held") {
  const Model model = small_convnet();
  for (const DeviceKind kind : tested_kinds())
    for (const int replicas : {1, 3})
      for (const LossAt at : {LossAt::local, LossAt::gathered}) {
        DataParallelOptions options = on(kind, replicas, MseLoss{});
        options.loss = at;
        const auto estimated = estimate_memory(model, options, {14}, {20}, kSgd);
        DataParallel net(model, options);
        net.prepare({14}, {20}, {}, {}, kSgd);
        net.train_step(targeted_batch(model, 14), kSgd);
        net.evaluate(targeted_batch(model, 20));
        for (int replica = 0; replica < replicas; ++replica) {
          INFO("replica " << replica << " of " << replicas << " on " << to_string(Device{kind, 0}));
          MemoryUse wanted = estimated.at(static_cast<std::size_t>(replica)), held = net.memory_use(replica);
          // On GPUs the estimate excludes the copies of images, targets and samples.
          if (kind == DeviceKind::cuda) wanted.other = held.other = 0;
          CHECK(wanted.total() == held.total());
        }
      }
}

TEST_CASE("a network learns to add the pixels of an image") {
  ModelBuilder m("sums", Shape{1, 2, 2});
  const Model model = m.build(m.linear("fc", m.flatten(m.input()), {.out_features = 1}));
  DataParallel net(model, on(DeviceKind::cpu, 2, MseLoss{}));
  Batch batch = targeted_batch(model, 64);
  for (std::int64_t row = 0; row < 64; ++row) {
    const float* const image = batch.images.data<float>() + 4 * row;
    batch.targets.data<float>()[row] = image[0] + image[1] + image[2] + image[3];
  }
  for (int step = 0; step < 200; ++step) net.train_step(batch, kSgd);
  net.take_stats();
  net.evaluate(batch);
  CHECK(net.take_stats().loss() < 1e-6);
}

TEST_CASE("a batch without targets, with targets of another shape, or with targets for cross-entropy is refused") {
  const Model model = small_convnet();
  DataParallel net(model, on(DeviceKind::cpu, 1, MseLoss{}));
  CHECK(refusal([&] { net.train_step(random_batch(model, 4), kSgd); }) ==
        "the targets of a batch have shape (); give one for each output of model 'small_convnet': (4, 7)");
  Batch batch = targeted_batch(model, 4);
  batch.targets = Tensor(Shape{4, 6});
  CHECK(refusal([&] { net.evaluate(batch); }) ==
        "the targets of a batch have shape (4, 6); give one for each output of model 'small_convnet': (4, 7)");
  batch.targets = Tensor(Shape{4, 7}, DType::i32);
  CHECK(refusal([&] { net.train_step(batch, kSgd); }).starts_with("targets"));
  DataParallel labels(model, on(DeviceKind::cpu, 1, BceWithLogitsLoss{}));
  for (const float wrong : {-0.5f, 1.5f, NAN}) {
    batch = targeted_batch(model, 4);
    labels.evaluate(batch);
    batch.targets.data<float>()[27] = wrong;
    CHECK_THAT(refusal([&] { labels.train_step(batch, kSgd); }),
               Catch::Contains("is not between 0 and 1, as the loss bce_with_logits requires"));
  }
  DataParallel classes(model, on_cpus(1));
  CHECK(
      refusal([&] { classes.train_step(targeted_batch(model, 4), kSgd); }) ==
      "a batch has targets, but cross-entropy reads labels; set DataParallelOptions::output_loss, or soft_targets for "
      "training");
  DataParallelOptions soft = on_cpus(1);
  soft.soft_targets = true;
  DataParallel mixed(model, soft);
  CHECK(refusal([&] {
          mixed.train_step(random_batch(model, 4), kSgd);
        }).starts_with("the targets of a batch have shape"));
  CHECK(refusal([&] { mixed.evaluate(targeted_batch(model, 4)); }).starts_with("a batch has targets"));
  for (const float wrong : {-0.5f, INFINITY, NAN}) {
    batch = targeted_batch(model, 4);
    mixed.train_step(batch, kSgd);
    batch.targets.data<float>()[27] = wrong;
    CHECK_THAT(refusal([&] { mixed.train_step(batch, kSgd); }),
               Catch::Contains("is not a number from 0 on, as the loss soft_cross_entropy requires"));
  }
}

TEST_CASE("with soft targets, training reads targets and an evaluation labels") {
  const Model model = small_convnet();
  for (const DeviceKind kind : tested_kinds())
    for (const int replicas : {1, 3})
      for (const LossAt at : {LossAt::local, LossAt::gathered}) {
        INFO(replicas << " x " << to_string(Device{kind, 0}));
        DataParallelOptions options = on(kind, replicas, MseLoss{});
        options.output_loss.reset();
        options.loss = at;
        DataParallel hard(model, options);
        options.soft_targets = true;
        DataParallel soft(model, options);
        const auto estimated = estimate_memory(model, options, {10}, {20}, kSgd);
        soft.prepare({10}, {20}, {}, {}, kSgd);
        const Batch labelled = random_batch(model, 10), evaluated = random_batch(model, 20, 2);
        Batch batch = targeted_batch(model, 10);
        std::ranges::fill(batch.targets.span<float>(), 0.0f);
        for (std::int64_t row = 0; row < 10; ++row)
          batch.targets.data<float>()[row * model.output().numel() + labelled.labels.data<std::int32_t>()[row]] = 1;
        for (int step = 0; step < 2; ++step) {
          soft.train_step(batch, kSgd);
          hard.train_step(labelled, kSgd);
          const Stats stats = soft.take_stats(), wanted = hard.take_stats();
          CHECK(stats.loss() == Approx(wanted.loss()).epsilon(1e-6));
          CHECK(stats.accuracy1() == wanted.accuracy1());
          soft.evaluate(evaluated);
          hard.evaluate(evaluated);
          CHECK(soft.take_stats().loss() == Approx(hard.take_stats().loss()).epsilon(1e-6));
        }
        CHECK(worst_error(soft.weights(), hard.weights()).error <= 1e-6);
        for (int replica = 0; replica < replicas; ++replica) {
          MemoryUse wanted = estimated.at(static_cast<std::size_t>(replica)), held = soft.memory_use(replica);
          // On GPUs the estimate excludes the copies of images, targets and samples.
          if (kind == DeviceKind::cuda) wanted.other = held.other = 0;
          CHECK(wanted.total() == held.total());
        }
      }
}

// A weight of 2 counts a sample twice, a weight of 0 not at all.
TEST_CASE("weights of samples are factors of their losses in training, and an evaluation has none") {
  const Model model = small_convnet();
  const std::int64_t outputs = model.output().numel();
  for (const DeviceKind kind : tested_kinds())
    for (const OutputLoss& loss : {OutputLoss(MseLoss{}), OutputLoss(SoftCrossEntropyLoss{})})
      for (const int replicas : {1, 3})
        for (const LossAt at : {LossAt::local, LossAt::gathered}) {
          INFO(name_of(loss) << ", " << replicas << " x " << to_string(Device{kind, 0}));
          DataParallelOptions options = on(kind, replicas, loss);
          options.loss = at;
          options.dropout = false;
          if (std::holds_alternative<SoftCrossEntropyLoss>(loss))
            options.output_loss.reset(), options.soft_targets = true;
          DataParallel plain(model, options);
          options.sample_weights = true;
          DataParallel weighted(model, options);
          const auto estimated = estimate_memory(model, options, {6}, {6}, kSgd);
          weighted.prepare({6}, {6}, {}, {}, kSgd);
          const Batch batch = targeted_batch(model, 6);
          Batch twice = batch, other = batch;  // sample 0 in place of sample 1
          twice.images = batch.images.clone(), twice.targets = batch.targets.clone();
          std::memcpy(twice.images.rows(1, 2).raw(), batch.images.raw(), batch.images.bytes() / 6);
          std::memcpy(twice.targets.rows(1, 2).raw(), batch.targets.raw(), batch.targets.bytes() / 6);
          other.targets = Tensor(Shape{6, outputs + 1});
          for (std::int64_t row = 0; row < 6; ++row) {
            float* const to = other.targets.data<float>() + row * (outputs + 1);
            std::copy_n(batch.targets.data<float>() + row * outputs, outputs, to);
            to[outputs] = row == 0 ? 2 : row == 1 ? 0 : 1;
          }
          for (int step = 0; step < 2; ++step) {
            plain.train_step(twice, kSgd);
            weighted.train_step(other, kSgd);
            CHECK(weighted.take_stats().loss() == Approx(plain.take_stats().loss()).epsilon(1e-6));
          }
          CHECK(worst_error(weighted.weights(), plain.weights()).error <= 1e-6);
          if (options.soft_targets) continue;
          weighted.evaluate(batch), plain.evaluate(batch);
          CHECK(weighted.take_stats().loss() == Approx(plain.take_stats().loss()).epsilon(1e-6));
          for (int replica = 0; replica < replicas; ++replica) {
            MemoryUse wanted = estimated.at(static_cast<std::size_t>(replica)), held = weighted.memory_use(replica);
            if (kind == DeviceKind::cuda) wanted.other = held.other = 0;  // the estimate excludes the copies of targets
            CHECK(wanted.total() == held.total());
          }
        }
}

TEST_CASE("weights of samples need targets, a column of the targets, and numbers from 0 on") {
  const Model model = small_convnet();
  DataParallelOptions options = on_cpus(1);
  options.sample_weights = true;
  CHECK(refusal([&] { DataParallel(model, options); }) ==
        "weights of samples require targets: set output_loss or soft_targets");
  options.output_loss = BceWithLogitsLoss{};
  DataParallel net(model, options);
  CHECK_THAT(refusal([&] { net.train_step(targeted_batch(model, 4), kSgd); }),
             Catch::Contains("give one for each output of model 'small_convnet', and the weight of the sample"));
  Batch batch = targeted_batch(model, 4);
  batch.targets = Tensor(Shape{4, model.output().numel() + 1});
  std::ranges::fill(batch.targets.span<float>(), 0.5f);
  float& weight = batch.targets.data<float>()[model.output().numel()];
  weight = 3;  // more than a target of this loss may be
  net.train_step(batch, kSgd);
  weight = -1;
  CHECK(refusal([&] { net.train_step(batch, kSgd); }) == "the weight of a sample is -1; give a number from 0 on");
}

TEST_CASE("soft targets exclude a loss of outputs and label smoothing") {
  const Model model = small_convnet();
  DataParallelOptions options = on(DeviceKind::cpu, 1, MseLoss{});
  options.soft_targets = true;
  CHECK(refusal([&] { DataParallel(model, options); }) == "soft targets are for cross-entropy, not for the loss mse");
  options.output_loss.reset();
  options.label_smoothing = 0.1f;
  CHECK(refusal([&] { DataParallel(model, options); }) == "soft targets exclude label_smoothing: smooth the targets");
}

TEST_CASE("parameters of a loss that are out of range, and label smoothing beside targets, are refused") {
  const Model model = small_convnet();
  const auto made = [&](const OutputLoss& loss, float smoothing = 0) {
    return refusal([&] {
      DataParallelOptions options = on(DeviceKind::cpu, 1, loss);
      options.label_smoothing = smoothing;
      DataParallel(model, options);
    });
  };
  const auto on_host = [&](const OutputLoss& loss) {
    return refusal([&] { output_loss(loss, Tensor(Shape{2, 3}), Tensor(Shape{2, 3})); });
  };
  CHECK(made(HuberLoss{0}).starts_with("--huber-delta is 0; it must be a number greater than 0"));
  CHECK(made(SmoothL1Loss{-1}).starts_with("--smooth-l1-beta is -1; it must be a number from 0"));
  CHECK(made(BceWithLogitsLoss{0}).starts_with("--pos-weight is 0; it must be a number greater than 0"));
  CHECK(made(FocalLoss{2, 2}) == "--focal-alpha is 2; it must be a number from -1 to 1");
  CHECK(made(FocalLoss{0.25f, -1}).starts_with("--focal-gamma is -1; it must be a number from 0"));
  CHECK(on_host(HuberLoss{0}) == "loss huber: delta must be positive");
  CHECK(on_host(SmoothL1Loss{-1}) == "loss smooth_l1: beta must be at least 0");
  CHECK(on_host(BceWithLogitsLoss{0}) == "loss bce_with_logits: pos_weight must be positive");
  CHECK(on_host(FocalLoss{2, 2}) == "loss focal: alpha must be at most 1");
  CHECK(on_host(FocalLoss{0.25f, -1}) == "loss focal: gamma must be at least 0");
  CHECK(made(MseLoss{}, 0.1f) ==
        "--label-smoothing is for class numbers; the loss mse has targets, which the data set can smooth");
  CHECK(refusal([] {
          output_loss(MseLoss{}, Tensor(Shape{2, 3}), Tensor(Shape{2, 2}));
        }) == "targets must be float32 of shape (2, 3), not float32 of (2, 2)");
  CHECK(refusal([] { output_loss(MseLoss{}, Tensor(Shape{2}), Tensor(Shape{2})); }) ==
        "outputs must be (batch, outputs), not (2,)");
}

namespace {

DataParallelOptions on(DeviceKind kind, int replicas) {
  DataParallelOptions options = on(kind, replicas, MseLoss{});
  options.output_loss.reset();
  return options;
}

OwnLoss own_cross_entropy() {
  return {"own", "", [](const Tensor& outputs, const Batch& batch) { return cross_entropy(outputs, batch.labels, 0); }};
}

}  // namespace

TEST_CASE("an own loss trains and evaluates as the same built-in loss, on every device") {
  const Model model = small_convnet();
  for (const DeviceKind kind : tested_kinds())
    for (const int replicas : {1, 3}) {
      INFO(replicas << " x " << to_string(Device{kind, 0}));
      DataParallelOptions options = on(kind, replicas);
      DataParallel built_in(model, options);
      options.own_loss = own_cross_entropy();
      DataParallel own(model, options);
      const auto estimated = estimate_memory(model, options, {10}, {20}, kSgd);
      own.prepare({10}, {20}, {}, {}, kSgd);
      const Batch evaluated = random_batch(model, 20, 2);
      for (std::uint64_t step = 0; step < 3; ++step) {
        const Batch batch = random_batch(model, 10, step);
        own.train_step(batch, kSgd);
        built_in.train_step(batch, kSgd);
        for (const bool training : {true, false}) {
          if (!training) own.evaluate(evaluated), built_in.evaluate(evaluated);
          const Stats stats = own.take_stats(), wanted = built_in.take_stats();
          CHECK(stats.loss() == Approx(wanted.loss()).epsilon(1e-6));
          CHECK(stats.samples == wanted.samples);
          CHECK(stats.top1 == wanted.top1);
          CHECK(stats.top5 == wanted.top5);
          CHECK(stats.has_labels);
        }
      }
      CHECK(own.step_count() == 3);
      CHECK(worst_error(own.weights(), built_in.weights()).error <= 1e-6);
      CHECK(own.replicas_identical());
      for (int replica = 0; replica < replicas; ++replica) {
        MemoryUse wanted = estimated.at(static_cast<std::size_t>(replica)), held = own.memory_use(replica);
        // On GPUs the estimate excludes the copies of images, targets and samples.
        if (kind == DeviceKind::cuda) wanted.other = held.other = 0;
        CHECK(wanted.total() == held.total());
      }
    }
}

TEST_CASE("an own loss gets the targets of a batch, which then has no accuracy") {
  const Model model = small_convnet();
  DataParallelOptions options = on_cpus(2);
  options.own_loss = {"targets", "", [](const Tensor& outputs, const Batch& batch) {
                        return output_loss(MseLoss{}, outputs, batch.targets);
                      }};
  DataParallel own(model, options);
  options.own_loss.reset();
  options.output_loss = MseLoss{};
  DataParallel built_in(model, options);
  Batch batch = random_batch(model, 10);
  batch.targets = Tensor(model.output().prepended(10));
  for (float& target : batch.targets.span<float>()) target = 0.5f;
  own.train_step(batch, kSgd);
  built_in.train_step(batch, kSgd);
  const Stats stats = own.take_stats();
  CHECK(stats.loss() == Approx(built_in.take_stats().loss()).epsilon(1e-6));
  CHECK_FALSE(stats.has_labels);
  CHECK(worst_error(own.weights(), built_in.weights()).error <= 1e-6);
}

TEST_CASE("an own loss that is not finite ends the run, or the step is skipped") {
  const Model model = small_convnet();
  DataParallelOptions options = on_cpus(2);
  bool broken = true;
  options.own_loss = {"broken", "", [&](const Tensor& outputs, const Batch& batch) {
                        Loss loss = cross_entropy(outputs, batch.labels);
                        if (broken) loss.value = NAN;
                        return loss;
                      }};
  DataParallel aborts(model, options);
  try {
    aborts.train_step(random_batch(model, 10), kSgd);
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::nonfinite);
    CHECK_THAT(error.what(), Catch::Contains("the loss 'broken' is not finite in step 0"));
  }
  options.on_nonfinite = OnNonfinite::skip;
  DataParallel skips(model, options);
  const auto before = skips.weights();
  skips.train_step(random_batch(model, 10), kSgd);
  Stats stats = skips.take_stats();
  CHECK(stats.skipped == 1);
  CHECK(stats.samples == 0);
  const auto after = skips.weights();
  for (const ParameterSpec& parameter : model.parameters())
    for (std::size_t i = 0; i < before.size(); ++i)
      if (before[i].first == parameter.name)
        CHECK(std::memcmp(before[i].second.raw(), after[i].second.raw(), after[i].second.bytes()) == 0);
  broken = false;
  skips.train_step(random_batch(model, 10), kSgd);
  stats = skips.take_stats();
  CHECK(stats.samples == 10);
  CHECK(worst_error(skips.weights(), before).error > 0);
}

TEST_CASE("an own loss is refused where the whole batch is not at hand, and a wrong gradient by its shape") {
  const Model model = small_convnet();
  const auto made = [&](const auto& change) {
    DataParallelOptions options = on_cpus(2);
    options.own_loss = own_cross_entropy();
    change(options);
    return refusal([&] { DataParallel(model, options); });
  };
  CHECK(made([](auto& o) { o.own_loss->function = nullptr; }) == "the loss 'own' of this program has no function");
  CHECK_THAT(made([](auto& o) { o.output_loss = MseLoss{}; }), Catch::Contains("replaces --output-loss"));
  CHECK_THAT(made([](auto& o) { o.label_smoothing = 0.1f; }), Catch::Contains("replaces --output-loss"));
  CHECK_THAT(made([](auto& o) { o.grad_accum_steps = 2; }), Catch::Contains("requires whole batches"));
  CHECK_THAT(made([](auto& o) { o.pipeline.stages = 2; }), Catch::Contains("requires whole batches"));
  CHECK_THAT(made([](auto& o) { o.logical_shards = 4; }), Catch::Contains("one logical shard per replica"));
  CHECK(made([](auto& o) { o.logical_shards = 2; }) == "accepted");
  DataParallelOptions options = on_cpus(2);
  options.own_loss = {"wrong", "", [](const Tensor&, const Batch&) { return Loss{1, Tensor(Shape{3})}; }};
  DataParallel wrong(model, options);
  CHECK_THAT(refusal([&] { wrong.train_step(random_batch(model, 4), kSgd); }),
             Catch::StartsWith("the gradient of the logits has shape (3,)"));
}

TEST_CASE("own losses are found by name, and a name is added once") {
  CHECK_THAT(refusal([] { losses::find("unknown"); }), Catch::Contains("loss 'unknown' does not exist"));
  losses::add(own_cross_entropy());
  CHECK(losses::find("own").function != nullptr);
  CHECK(refusal([] { losses::add(own_cross_entropy()); }) == "loss 'own' exists already");
  CHECK(refusal([] { losses::find("unknown"); }) == "loss 'unknown' does not exist; choose one of own");
}
