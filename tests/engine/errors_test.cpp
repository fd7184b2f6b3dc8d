// Failing replicas, rejected inputs, and the failpoints that cause the failures.
#include <chrono>

#include "dp/error.h"
#include "engine/observe/failpoint.h"
#include "engine/step/worker_pool.h"
#include "support/catch.h"
#include "support/failing.h"
#include "support/patience.h"
#include "support/training.h"

using namespace dp;
using namespace dp::test;

namespace {

// Runs `steps` steps; returns the error's text, or an empty string.
std::string failure_of(const Model& model, const DataParallelOptions& options, int steps, ErrorCode* code = nullptr) {
  try {
    DataParallel net(model, options);
    for (int step = 0; step < steps; ++step) net.train_step(random_batch(model, 8), Sgd{.lr = 0.01f, .momentum = 0.9f});
  } catch (const Error& error) {
    if (code != nullptr) *code = error.code();
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("failpoints: the grammar is parsed, and invalid texts are rejected") {
  using engine::parse_failpoints;
  CHECK(parse_failpoints("").empty());
  const auto points = parse_failpoints("throw:backward:dev1:step3,stall:reduce:250ms,nan:forward");
  REQUIRE(points.size() == 3);
  CHECK(points[0].action == engine::FailAction::raise);
  CHECK(points[0].phase == engine::Phase::backward);
  CHECK(points[0].replica == 1);
  CHECK(points[0].step == 3);
  CHECK(points[1].stall_ms == 250);
  CHECK(points[2].replica == -1);
  for (const char* bad : {"throw", "explode:forward", "throw:nowhere", "throw:forward:devx", "throw:forward:step",
                          "nan:loss:7", ",", "nan:scatter", "nan:loss:dev0", "nan:broadcast", "throw:forward:10ms"})
    CHECK_THROWS_AS(parse_failpoints(bad), Error);
}

TEST_CASE("an exception in any phase on any replica is rethrown with its place, and a new engine works") {
  const Model model = small_convnet();
  CHECK(failure_of(model, on_cpus(2), 1).empty());  // a sanitizer starts its own thread with our first thread
  const std::ptrdiff_t threads = thread_count();
  for (const int replicas : {1, 2, 4})
    for (const Reduce reduce : {Reduce::master, Reduce::all_reduce, Reduce::sharded})
      for (const char* phase : {"scatter", "forward", "backward", "reduce", "update", "broadcast"})
        for (int replica = 0; replica < replicas; ++replica) {
          if (replicas == 1 && std::string(phase) == "broadcast") continue;  // one replica has nothing to broadcast
          FailEnvironment fail(std::string("throw:") + phase + ":dev" + std::to_string(replica) + ":step1");
          DataParallelOptions options = on_cpus(replicas);
          options.reduce = reduce;
          options.bucket_bytes = 1000;
          const auto start = std::chrono::steady_clock::now();
          ErrorCode code{};
          const std::string text = failure_of(model, options, 3, &code);
          INFO(replicas << " replicas, " << phase << ": " << text);
          CHECK(text.find("replica " + std::to_string(replica) + " (cpu) failed in " + phase + " of step 1") !=
                std::string::npos);
          CHECK(code == ErrorCode::device);
          CHECK(in_time(start, 1));
        }
  CHECK(becomes([&] { return thread_count() <= threads; }));  // a joined thread may be listed a little longer
  CHECK(failure_of(model, on_cpus(2), 1).empty());
}

TEST_CASE("a failure in the gathered loss is reported like one in any other phase") {
  FailEnvironment fail("throw:loss:dev0:step0");
  DataParallelOptions options = on_cpus(3);
  options.loss = LossAt::gathered;
  CHECK(failure_of(small_convnet(), options, 1).find("replica 0 (cpu) failed in loss of step 0") != std::string::npos);
}

TEST_CASE("of several failures the lowest device is reported with the others attached") {
  FailEnvironment fail("throw:scatter:step0");
  DataParallel net(small_convnet(), on_cpus(4));
  try {
    net.train_step(random_batch(net.model(), 8), Sgd{});
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find("replica 0") != std::string::npos);
    CHECK(error.others().size() == 3);
  }
  CHECK_THROWS_WITH(net.train_step(random_batch(net.model(), 8), Sgd{}), Catch::Contains("destroy"));
}

TEST_CASE("a stalled replica changes nothing but the time") {
  const Model model = small_convnet();
  const auto weights = [&] {
    DataParallel net(model, on_cpus(2));
    for (int step = 0; step < 3; ++step) net.train_step(random_batch(model, 8), Sgd{.lr = 0.1f});
    return net.weights();
  };
  const auto expected = weights();
  for (const char* phase : {"scatter", "forward", "backward", "reduce", "update", "broadcast"}) {
    FailEnvironment fail(std::string("stall:") + phase + ":dev1:step1:50ms");
    CHECK(bit_equal(weights(), expected));
  }
}

TEST_CASE("NaN: abort names step and replica before the next step") {
  for (const char* where : {"forward", "backward", "reduce"})
    for (const int replica : {0, 1}) {
      FailEnvironment fail(std::string("nan:") + where + ":dev" + std::to_string(replica) + ":step2");
      DataParallelOptions options = on_cpus(2);
      options.reduce = Reduce::master;
      ErrorCode code{};
      const std::string text = failure_of(small_convnet(), options, 3, &code);
      INFO(where << ": " << text);
      CHECK(code == ErrorCode::nonfinite);
      CHECK(text.find("of step 2") != std::string::npos);
      // The check runs on reduced gradients: a NaN from any shard is reported by the replica that holds the result.
      const int shown = std::string(where) == "forward" ? replica : 0;
      CHECK(text.find("replica " + std::to_string(shown)) != std::string::npos);
    }
}

TEST_CASE("NaN: skip leaves weights and momenta unchanged on every replica and counts the step") {
  const Model model = small_convnet();
  for (const Reduce reduce : {Reduce::master, Reduce::all_reduce, Reduce::sharded}) {
    DataParallelOptions options = on_cpus(3);
    options.reduce = reduce;
    options.on_nonfinite = OnNonfinite::skip;
    const auto after = [&](int steps) {
      DataParallel net(model, options);
      for (int step = 0; step < steps; ++step)
        net.train_step(random_batch(model, 8), Sgd{.lr = 0.1f, .momentum = 0.9f});
      CHECK(net.replicas_identical());
      auto state = net.weights();
      for (auto& momentum : net.optimizer_state().tensors) state.push_back(momentum);
      return std::pair(state, net.take_stats().skipped);
    };
    const auto [expected, none] = after(2);
    CHECK(none == 0);
    FailEnvironment fail("nan:backward:dev1:step2");
    const auto [skipped, one] = after(3);
    CHECK(one == 1);
    CHECK(bit_equal(skipped, expected));
  }
}

TEST_CASE("NaN: a skipped step leaves running statistics and the epoch's loss readable") {
  const Model model = residual_net();
  DataParallelOptions options = on_cpus(2);
  options.on_nonfinite = OnNonfinite::skip;
  DataParallel net(model, options);
  Batch bad = random_batch(model, 8);
  bad.images = bad.images.clone();
  bad.images.span<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  net.train_step(random_batch(model, 8), Sgd{.lr = 0.1f});
  net.train_step(bad, Sgd{.lr = 0.1f});
  net.train_step(random_batch(model, 8, 3), Sgd{.lr = 0.1f});
  const Stats stats = net.take_stats();
  CHECK(stats.skipped == 1);
  CHECK(std::isfinite(stats.loss()));
  for (const auto& [name, tensor] : net.weights())
    for (std::int64_t i = 0; i < tensor.numel(); ++i) {
      INFO(name << " " << i);
      REQUIRE(std::isfinite(value_at(tensor, i)));
    }
  net.evaluate(random_batch(model, 8));
  CHECK(std::isfinite(net.take_stats().loss()));
}

TEST_CASE("inputs of different batch sizes are rejected with both sizes named") {
  const Model model = small_convnet();
  DataParallel net(model, on_cpus(2));
  Batch batch = random_batch(model, 8);
  batch.labels = Tensor(Shape{7}, DType::i32);
  CHECK_THROWS_WITH(net.train_step(batch, Sgd{}),
                    Catch::Contains("a batch has 8 images but 7 labels; give one label per image"));
  batch = random_batch(model, 8);
  batch.images = Tensor(Shape{8, 3, 12, 12});
  CHECK_THROWS_WITH(net.train_step(batch, Sgd{}), Catch::Contains("(8, 3, 12, 12)"));
  CHECK_THROWS_AS(net.train_step(Batch{}, Sgd{}), Error);
  CHECK_THROWS_AS(net.forward(Tensor()), Error);
  CHECK_THROWS_AS(net.backward(Tensor(Shape{8, 7})), Error);
  net.train_step(random_batch(model, 8), Sgd{});  // a refused batch leaves the engine usable
}

TEST_CASE("invalid options are rejected") {
  const Model model = small_convnet();
  const auto with = [&](auto change) {
    DataParallelOptions options = on_cpus(1);
    change(options);
    DataParallel net(model, options);
  };
  CHECK_THROWS_AS(with([](auto& o) { o.grad_accum_steps = 0; }), Error);
  CHECK_THROWS_AS(with([](auto& o) { o.label_smoothing = 1; }), Error);
  CHECK_THROWS_AS(with([](auto& o) { o.clip_grad_norm = 0; }), Error);
  CHECK_THROWS_AS(with([](auto& o) { o.devices = {Device{DeviceKind::cpu}, Device{DeviceKind::reference}}; }), Error);
  CHECK_THROWS_AS(cross_entropy(Tensor(Shape{2, 3}), Tensor(Shape{3}, DType::i32)), Error);
}
