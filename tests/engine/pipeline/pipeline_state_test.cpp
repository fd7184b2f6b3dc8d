// What surrounds the steps of a pipeline: evaluation, state, memory, refusals and failures.
#include <algorithm>
#include <cstdlib>

#include "dp/error.h"
#include "engine/pipeline/pipelined.h"
#include "support/catch.h"
#include "support/failing.h"
#include "support/fake_time.h"
#include "support/held_stall.h"
#include "support/sanitized.h"

using namespace dp;
using namespace dp::test;

namespace {

constexpr Sgd kSgd{.lr = 0.05f, .momentum = 0.9f};

class MemoryLimit {
 public:
  explicit MemoryLimit(std::size_t bytes) {
    ::setenv("DP_MEMORY_LIMIT", std::to_string(static_cast<double>(bytes) / (1 << 20)).c_str(), 1);
  }
  ~MemoryLimit() { ::unsetenv("DP_MEMORY_LIMIT"); }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;
};

// (sample, its logits), in an order that does not depend on the devices.
std::vector<std::pair<std::int64_t, std::vector<float>>> by_sample(const EvaluatedLogits& taken) {
  std::vector<std::pair<std::int64_t, std::vector<float>>> rows;
  const std::size_t classes = static_cast<std::size_t>(taken.logits.shape()[1]);
  for (std::size_t i = 0; i < taken.samples.size(); ++i) {
    const float* const row = taken.logits.data<float>() + i * classes;
    rows.emplace_back(taken.samples[i], std::vector<float>(row, row + classes));
  }
  std::ranges::sort(rows);
  return rows;
}

std::string refusal_of(const DataParallelOptions& options) {
  try {
    DataParallel net(small_convnet(), options);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::usage);
    return error.what();
  }
  return "accepted";
}

std::string failure_of(const DataParallelOptions& options, int steps) {
  try {
    DataParallel net(residual_net(), options);
    for (int step = 0; step < steps; ++step) net.train_step(random_batch(net.model(), 9), kSgd);
  } catch (const Error& error) {
    return error.what();
  }
  return "no failure";
}

}  // namespace

TEST_CASE("pipeline: an evaluation counts the samples, losses and accuracies of one device") {
  const Model model = residual_net();
  DataParallel one(model, on_cpus(1));
  for (const Layout& layout : {Layout{1, 2, 3}, {2, 3, 3}}) {
    DataParallel net(model, pipelined(on_cpus(1), layout, one_f_one_b));
    net.set_weights(one.weights());
    REQUIRE(one.store_logits(4, 9));
    REQUIRE(net.store_logits(4, 9));
    for (const std::int64_t rows : {9, 9, 9, 1}) {
      const Batch batch = random_batch(model, rows, static_cast<std::uint64_t>(rows));
      one.evaluate(batch);
      net.evaluate(batch);
      const Stats expected = one.take_stats(), stats = net.take_stats();
      CHECK(stats.samples == rows);
      CHECK(stats.top1 == expected.top1);
      CHECK(stats.top5 == expected.top5);
      CHECK(stats.loss_sum == Approx(expected.loss_sum).epsilon(1e-6));  // float32 rows in batches of another size
    }
    const auto expected = by_sample(one.take_logits()), logits = by_sample(net.take_logits());
    REQUIRE(expected.size() == 9 + 9 + 9 + 1);
    REQUIRE(logits.size() == expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CHECK(logits[i].first == expected[i].first);
      for (std::size_t c = 0; c < expected[i].second.size(); ++c)
        CHECK(logits[i].second[c] == Approx(expected[i].second[c]).margin(1e-5));
    }
  }
}

TEST_CASE("pipeline: state moves between layouts, and training goes on with the same bits") {
  const Model model = residual_net(/*relu=*/true, /*dropout=*/true);
  const auto on = [](const Layout& layout) {
    DataParallelOptions options = on_cpus(1);
    options.logical_shards = 8;
    options.ema_decay = 0.9;
    return pipelined(options, layout, one_f_one_b);
  };
  const auto step = [&](DataParallel& net, std::uint64_t number) {
    net.train_step(random_batch(model, 19, number), kSgd);
  };
  DataParallel whole(model, on({1, 1, 0}));
  for (std::uint64_t number = 0; number < 6; ++number) step(whole, number);

  std::vector<NamedTensor> weights = DataParallel(model, on({1, 1, 0})).weights(), average = weights;
  OptimizerState optimizer;
  std::int64_t updates = 0;
  const Layout layouts[] = {{1, 4, 0}, {2, 2, 0}, {4, 1, 0}};
  for (std::uint64_t number = 0; number < 6; ++number) {
    DataParallel net(model, on(layouts[number / 2]));
    net.set_weights(weights);
    net.set_optimizer_state(optimizer);
    net.set_average_weights(average);
    net.set_average_updates(updates);
    net.set_step_count(static_cast<std::int64_t>(number));
    step(net, number);
    weights = net.weights();
    optimizer = net.optimizer_state();
    average = net.average_weights();
    updates = net.average_updates();
  }
  CHECK(bit_equal(weights, whole.weights()));
  CHECK(bit_equal(optimizer.tensors, whole.optimizer_state().tensors));
  CHECK(bit_equal(average, whole.average_weights()));
}

TEST_CASE("pipeline: tensors have the names and the order of the whole model") {
  const Model model = residual_net();
  const DataParallel one(model, on_cpus(1)), net(model, pipelined(on_cpus(1), {1, 3, 2}, gpipe));
  const auto names = [](const std::vector<NamedTensor>& tensors) {
    std::vector<std::string> all;
    for (const auto& [name, tensor] : tensors) all.push_back(name);
    return all;
  };
  CHECK(names(net.weights()) == names(one.weights()));
  CHECK(bit_equal(net.weights(), one.weights()));  // drawn from the same seed
}

TEST_CASE("pipeline: the memory estimate of each stage is the memory held, and no later step allocates") {
  const Model model = residual_net();
  for (const PipelineSchedule schedule : {gpipe, zero_bubble})
    for (const bool clip : {false, true}) {
      DataParallelOptions options = pipelined(on_cpus(1), {2, 2, 5}, schedule);
      if (schedule == gpipe && clip) options.pipeline.recompute = Recompute::stage;
      if (clip) options.clip_grad_norm = 1, options.ema_decay = 0.9;
      INFO("schedule " << static_cast<int>(schedule) << ", clip " << clip);
      const auto estimated = estimate_memory(model, options, {23, 8}, {40});
      DataParallel net(model, options);
      net.prepare({23, 8}, {40});
      const auto held = [&] {
        std::vector<std::size_t> bytes;
        for (int device = 0; device < net.size(); ++device) bytes.push_back(net.memory_use(device).total());
        return bytes;
      };
      const auto prepared = held();
      REQUIRE(estimated.size() == 4);
      REQUIRE(net.size() == 4);
      for (std::size_t device = 0; device < 4; ++device) {
        INFO("device " << device);
        CHECK(estimated[device].total() == prepared[device]);
        CHECK(estimated[device].activations == net.memory_use(static_cast<int>(device)).activations);
        CHECK(estimated[device].other == net.memory_use(static_cast<int>(device)).other);
      }
      for (const std::int64_t rows : {23, 8}) net.train_step(random_batch(model, rows), kSgd);
      net.evaluate(random_batch(model, 40));
      CHECK(held() == prepared);
    }
}

TEST_CASE("pipeline: stage s of P holds the activations of P - s micro-batches with 1f1b, and of all with gpipe") {
  const Model model = residual_net();
  const auto activations = [&](PipelineSchedule schedule, std::size_t stage) {
    return estimate_memory(model, pipelined(on_cpus(1), {1, 2, 8}, schedule), {64}).at(stage).activations;
  };
  CHECK(activations(one_f_one_b, 1) * 8 == activations(gpipe, 1));
  CHECK(activations(one_f_one_b, 0) * 4 == activations(gpipe, 0));
}

TEST_CASE("pipeline: a stage that recomputes holds the activations of one micro-batch, and inputs") {
  const Model model = residual_net();
  const auto held = [&](Recompute recompute, std::size_t stage) {
    DataParallelOptions options = pipelined(on_cpus(1), {1, 2, 8}, gpipe);
    options.pipeline.recompute = recompute;
    return estimate_memory(model, options, {64}).at(stage).activations;
  };
  CHECK(held(Recompute::stage, 0) * 8 == held(Recompute::none, 0));  // its inputs are the images
  CHECK(held(Recompute::stage, 1) < held(Recompute::none, 1) / 2);
  CHECK(held(Recompute::stage, 1) > held(Recompute::none, 1) / 8);
  CHECK(held(Recompute::except_last, 0) == held(Recompute::stage, 0));
  CHECK(held(Recompute::except_last, 1) == held(Recompute::none, 1));
}

TEST_CASE("pipeline: a model that exceeds a device's limit trains in stages") {
  const Model model = models::mlp({.input = {1, 8, 8}, .hidden = std::vector<std::int64_t>(7, 1024)});
  const auto most = [&](const DataParallelOptions& options) {
    std::size_t bytes = 0;
    for (const MemoryUse& use : estimate_memory(model, options, {16})) bytes = std::max(bytes, use.total());
    return bytes;
  };
  const DataParallelOptions one = accumulating(on_cpus(1), {1, 1, 8}),
                            two = pipelined(on_cpus(1), {1, 2, 8}, one_f_one_b);
  // A device allocates whole pages, so it holds a few MiB more than the estimate.
  const std::size_t limit = (most(one) + most(two)) / 2;
  REQUIRE(most(two) + (8 << 20) < limit);
  const MemoryLimit set(limit);
  const auto train = [&](const DataParallelOptions& options) {
    DataParallel net(model, options);
    net.prepare({16});
    net.train_step(random_batch(model, 16), kSgd);
    return net.weights();
  };
  CHECK_THROWS_WITH(train(one), Catch::Contains("DP_MEMORY_LIMIT") && Catch::Contains("more pipeline stages"));
  CHECK_FALSE(train(two).empty());
}

TEST_CASE("pipeline: impossible options are refused, with what would work") {
  const DataParallelOptions good = pipelined(on_cpus(1), {1, 2, 4}, one_f_one_b);
  CHECK(refusal_of(good) == "accepted");
  const auto refused = [&](const auto& change, const std::string& part) {
    DataParallelOptions options = good;
    change(options);
    CHECK_THAT(refusal_of(options), Catch::Contains(part));
  };
  refused([](auto& o) { o.devices = cpus(3); }, "use a multiple of 2");
  refused([](auto& o) { o.pipeline.stages = 0; }, "pipeline-stages");
  refused([](auto& o) { o.devices = cpus(9), o.pipeline.stages = 9; }, "conv2, conv3, fc1, fc2");
  refused([](auto& o) { o.pipeline.cuts = {"fc3"}; }, "conv2, conv3, fc1, fc2");
  refused([](auto& o) { o.pipeline.cuts = {"conv2", "fc1"}; }, "requires 1 cuts, not 2");
  refused([](auto& o) { o.pipeline.measured = o.deterministic = true; }, "--deterministic excludes");
  refused([](auto& o) { o.loss = LossAt::gathered; }, "--loss local");
  refused([](auto& o) { o.split = Split::chunk; }, "--split balanced");
  refused([](auto& o) { o.split_weights = {1}; }, "--split balanced");
  refused([](auto& o) { o.grad_accum_steps = 3; }, "--micro-batches alone");
  refused([](auto& o) { o.logical_shards = 3; }, "micro-batches of a replica are its 3 shards");
  refused([](auto& o) { o.pipeline = {.recompute = Recompute::stage}; }, "--pipeline-stages 2 or more");
  refused([](auto& o) { o.logical_shards = 4, o.batch_norm = BatchNormMode::sync; }, "--bn pooled");
  refused([](auto& o) { o.pipeline.stages = 1; }, "--pipeline-stages 2 or more");
  DataParallel net(small_convnet(), good);
  const Batch batch = random_batch(net.model(), 4);
  CHECK_THROWS_WITH(net.forward(batch.images), Catch::Contains("only train_step and evaluate"));
  CHECK_THROWS_WITH(net.predict(batch.images), Catch::Contains("only train_step and evaluate"));
  CHECK_THROWS_WITH(net.step(kSgd), Catch::Contains("only train_step and evaluate"));
  CHECK_THROWS_AS(measure_split(net.model(), good, 8), Error);
}

TEST_CASE("pipeline: the stages are described in one line") {
  DataParallelOptions options = pipelined(on_cpus(1), {1, 2, 8}, one_f_one_b);
  options.pipeline.cuts = {"b"};
  const DataParallel net(residual_net(), options);
  CHECK_THAT(net.describe_pipeline(), Catch::StartsWith("pipeline: 2 stages at b, ") &&
                                          Catch::Contains(" % balanced, bubble 11 % (1f1b, 8 micro-batches), ") &&
                                          Catch::EndsWith(" on the fullest device"));
  CHECK(DataParallel(residual_net(), on_cpus(1)).describe_pipeline().empty());
}

// The model of costs has no fixed cost of a call, so it gives the many small layers no time.
Model many_small_layers() {
  return models::mlp({.hidden = {64, 64, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4}});
}
std::string cut_of(const DataParallelOptions& options) {
  return DataParallel(many_small_layers(), options).options().pipeline.cuts.at(0);
}

TEST_CASE("pipeline: a cut by measured times gives the same bits, wherever it is, and names of cuts come first") {
  DataParallelOptions options = pipelined(on_cpus(1), {1, 2, 3}, one_f_one_b);
  const std::string modelled = cut_of(options);
  CHECK((modelled == "fc2" || modelled == "fc3"));
  const Trained expected = train(many_small_layers(), options, 7);
  options.pipeline.measured = true;
  check_same(train(many_small_layers(), options, 7), expected);
  options.pipeline.cuts = {"fc4"};
  CHECK(cut_of(options) == "fc4");
}

TEST_CASE("pipeline: measured times choose the cut") {
  const TimeOfLooks time;  // every layer takes the same time, so both stages have as many
  DataParallelOptions options = pipelined(on_cpus(1), {1, 2, 3}, one_f_one_b);
  options.pipeline.measured = true;
  CHECK(cut_of(options) == "fc12");
}

TEST_CASE("pipeline: a failure in any phase of any stage names replica, stage and micro-batch, and ends all") {
  int number = 0;
  for (const char* phase : {"scatter", "forward", "backward", "reduce", "update", "broadcast"})
    for (const int stage : {0, 1, 2}) {
      const bool passes = phase == std::string("forward") || phase == std::string("backward");
      const std::string replica = std::to_string(number % 2);
      const PipelineSchedule schedule = kSchedules[number++ % 4];
      FailEnvironment fail("throw:" + std::string(phase) + ":dev" + replica + ":stage" + std::to_string(stage) +
                           (passes ? ":micro2" : "") + ":step1");
      INFO("schedule " << static_cast<int>(schedule));
      CHECK_THAT(failure_of(pipelined(on_cpus(1), {2, 3, 4}, schedule), 3),
                 Catch::Contains("replica " + replica + " stage " + std::to_string(stage) + " (cpu) failed in " +
                                 phase + (passes ? " of micro-batch 2" : "") + " of step 1"));
    }
}

TEST_CASE("pipeline: a NaN in any stage ends the run") {
  for (const char* phase : {"forward", "backward"})
    for (const int stage : {0, 1, 2}) {
      FailEnvironment fail("nan:" + std::string(phase) + ":stage" + std::to_string(stage) + ":micro1:step1");
      DataParallel net(residual_net(/*relu=*/false), pipelined(on_cpus(1), {1, 3, 4}, one_f_one_b));
      INFO(phase << " of stage " << stage);
      const auto train = [&] {
        for (int step = 0; step < 2; ++step) net.train_step(random_batch(net.model(), 9), kSgd);
        net.take_stats();
      };
      CHECK_THROWS_WITH(train(), Catch::Contains("not finite"));
    }
}

TEST_CASE("pipeline: with --on-nonfinite skip, all stages skip a step with a NaN in any stage") {
  for (const char* phase : {"forward", "backward"})
    for (const int stage : {0, 1, 2}) {
      FailEnvironment fail("nan:" + std::string(phase) + ":stage" + std::to_string(stage) + ":micro1:step1");
      DataParallelOptions options = pipelined(on_cpus(1), {1, 3, 4}, one_f_one_b);
      options.on_nonfinite = OnNonfinite::skip;
      DataParallel net(residual_net(/*relu=*/false), options);  // a ReLU may mask the planted gradient
      net.train_step(random_batch(net.model(), 9), kSgd);
      std::vector<NamedTensor> before, after;
      const auto parameters = [&](std::vector<NamedTensor>& to) {
        for (const auto& [name, tensor] : net.weights())
          if (!name.ends_with("running_mean") && !name.ends_with("running_var") && !name.ends_with("tracked"))
            to.emplace_back(name, tensor);
      };
      parameters(before);
      net.train_step(random_batch(net.model(), 9), kSgd);
      parameters(after);
      INFO(phase << " of stage " << stage);
      CHECK(net.take_stats().skipped == 1);
      CHECK(bit_equal(before, after));
    }
}

TEST_CASE("pipeline: a stalled stage is named by the watchdog, with its micro-batch, and so are those that wait") {
  const HeldStall stall("forward:stage1:micro2:step1");
  DataParallelOptions options = pipelined(on_cpus(1), {1, 3, 4}, one_f_one_b);
  options.timeout_seconds = 1;
  const std::string failure = failure_of(options, 3);
  CHECK_THAT(failure, Catch::Contains("replica 0 stage 1 (cpu) is stalled in forward of micro-batch 2 of step 1") &&
                          Catch::Contains("replica 0 stage 2 (cpu) is waiting in forward of micro-batch "));
}
