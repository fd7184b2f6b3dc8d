// Mixed precision on simulated GPUs: against the reference, whose ops round their outputs, and against other
// configurations of itself.
#include <tuple>

#include "cuda/engine/amp_runs.h"
#include "dp/error.h"
#include "engine/base/test_modes.h"
#include "support/optimizers.h"
#include "support/relative_distance.h"

using namespace dp;
using namespace dp::test;

namespace {

DataParallelOptions references(int replicas) {
  DataParallelOptions options = on_reference();
  options.devices.assign(static_cast<std::size_t>(replicas), options.devices.front());
  return options;
}

// The weights after one optimizer step; empty if it is skipped, because a gradient overflows float16.
std::vector<NamedTensor> stepped_or_skipped(const Model& model, DataParallelOptions options, const Batch& batch) {
  options.loss_scale.initial = 512;  // few of these ill-conditioned gradients overflow
  DataParallel net(model, options);
  net.train_step(batch, Sgd{.lr = 0.1f, .momentum = 0.9f, .weight_decay = 1e-3f});
  CHECK(net.replicas_identical());
  return net.take_stats().skipped == 0 ? net.weights() : std::vector<NamedTensor>{};
}
std::vector<NamedTensor> stepped(const Model& model, const DataParallelOptions& options, const Batch& batch) {
  auto weights = stepped_or_skipped(model, options, batch);
  CHECK(!weights.empty());
  return weights;
}

// Compares a step of the simulation with one of the reference. They differ by float32 rounding only, unless that rounds
// a value to the other 16-bit neighbour. Then later values differ, too. So the test searches for a batch without a
// value of this kind. It skips batches whose gradients overflow in the reference. For networks this small a few seeds
// suffice.
void check_step(const Model& model, std::int64_t rows, int replicas) {
  SimulatedGpus machine(replicas);
  simt::simulation().delays = simt::simulation().protect_memory = false;  // faster
  const auto origin = DataParallel(model, references(replicas)).weights();
  for (const Amp amp : kAmpTypes) {
    INFO(model.name() << " in " << name_of(amp) << " on " << replicas);
    bool equal = false;
    for (std::uint64_t seed = 1; seed <= 8 && !equal; ++seed) {
      const Batch batch = random_batch(model, rows, seed);
      const auto expected = stepped_or_skipped(model, with(references(replicas), amp), batch);
      if (expected.empty()) continue;
      CHECK(relative_distance(expected, stepped(model, with(references(replicas), Amp::off), batch), origin) >
            1e-4);  // it rounds
      std::vector<NamedTensor> first;
      for (const Reduce reduce : kReductions) {
        DataParallelOptions options = with(on_gpus(replicas, replicas), amp);
        options.reduce = reduce;
        const auto got = stepped(model, options, batch);
        if (first.empty()) first = got;
        CHECK(bit_equal(got, first));
      }
      equal = relative_distance(first, expected, origin) <= 2e-6;
    }
    CHECK(equal);
  }
}

}  // namespace

TEST_CASE("mixed precision: a step of a narrow mnist_convnet equals the reference in every reduction") {
  for (const int replicas : cases({1, 2}, {2})) check_step(narrow_convnet(), 9, replicas);
}

TEST_CASE("mixed precision: a step of a narrow resnet18 equals the reference in every reduction") {
  const Model model = models::resnet18({.classes = 10, .input = {3, 4, 4}, .width = 4});
  for (const int replicas : cases({1, 2}, {2})) check_step(model, 6, replicas);
}

TEST_CASE("mixed precision: a step with convolutions fused with batch normalisation equals the reference") {
  const Model model = models::resnet18({.classes = 10, .input = {3, 4, 4}, .width = 8});
  const auto trained = [&](const DataParallelOptions& options, const Batch& batch, kernels::NormFusion mode) {
    engine::test_modes().norm_fusion = mode;
    auto weights = stepped(model, options, batch);
    engine::test_modes().norm_fusion = kernels::NormFusion::measured;
    return weights;
  };
  const auto origin = DataParallel(model, references(1)).weights();
  {
    SimulatedGpus machine(1);
    engine::test_modes().norm_fusion = kernels::NormFusion::always;
    const std::string plan = DataParallel(model, with(on_gpus(1, 1), Amp::bfloat16)).describe_plan(6);
    engine::test_modes().norm_fusion = kernels::NormFusion::measured;
    for (const char* const step :
         {"layer1.0.conv2 ", "layer1.0.conv2 backward_data ", "layer1.0.conv2 backward_weights "}) {
      const std::size_t begin = plan.find(step);
      INFO(step);
      REQUIRE(begin != std::string::npos);
      CHECK(plan.substr(begin, plan.find('\n', begin) - begin).find(" fused") != std::string::npos);
    }
  }
  for (const Amp amp : kAmpTypes)
    for (const int replicas : cases({1, 2}, {2})) {
      SimulatedGpus machine(replicas);
      simt::simulation().delays = simt::simulation().protect_memory = false;  // faster
      const DataParallelOptions options = with(on_gpus(replicas, replicas), amp);
      double fused = 1, rounding = 0;  // smallest of a few batches, as in check_step; effect of 16 bits
      for (std::uint64_t seed = 1; seed <= 4; ++seed) {
        const Batch batch = random_batch(model, 6, seed);
        const auto expected = trained(with(references(replicas), amp), batch, kernels::NormFusion::never);
        fused =
            std::min(fused, relative_distance(trained(options, batch, kernels::NormFusion::always), expected, origin));
        rounding += relative_distance(trained(with(references(replicas), Amp::off), batch, kernels::NormFusion::never),
                                      expected, origin) /
                    4;
      }
      INFO(name_of(amp) << " on " << replicas << ": " << fused << " apart, " << rounding << " by rounding");
      CHECK(fused <= rounding / 100);
    }
}

TEST_CASE("mixed precision: bfloat16 gradients and float16 steps with clipping and accumulation equal the reference") {
  const Model model = narrow_convnet();
  const Batch batch = random_batch(model, 9);
  const Outcome exact = forward_and_backward(model, on_reference(), batch);
  const Outcome expected = forward_and_backward(model, with(on_reference(), Amp::bfloat16), batch);
  SimulatedGpus machine(2);
  const Outcome got = forward_and_backward(model, with(on_gpus(2, 2), Amp::bfloat16), batch);
  CHECK(relative_error(got.predictions, expected.predictions) <=
        relative_error(expected.predictions, exact.predictions) / 4);
  CHECK(relative_error(expected.predictions, exact.predictions) < 0.02);
  CHECK(got.predictions.dtype() == DType::f32);
  CHECK(worst_of(got.gradients, expected.gradients).error <= worst_of(expected.gradients, exact.gradients).error / 4);

  for (const LossAt loss : {LossAt::local, LossAt::gathered}) {
    const auto run = [&](DataParallelOptions options, Amp amp) {
      options = with(options, amp);
      options.clip_grad_norm = 0.05;
      options.grad_accum_steps = 2;
      options.loss = loss;
      DataParallel net(model, options);
      net.train_step(batch, Sgd{.lr = 1.0f, .weight_decay = 1e-3f});
      const Stats stats = net.take_stats();
      CHECK(stats.skipped == 0);
      CHECK(stats.loss_scale.has_value() == (amp == Amp::float16));
      return std::tuple(net.weights(), net.gradients(), stats.grad_norm);
    };
    const auto origin = DataParallel(model, on_reference()).weights();
    const auto [exact_weights, exact_gradients, exact_norm] = run(references(2), Amp::off);
    const auto [ref_weights, ref_gradients, ref_norm] = run(references(2), Amp::float16);
    const auto [weights, gradients, norm] = run(on_gpus(2, 2), Amp::float16);
    CHECK(norm == Approx(exact_norm).epsilon(5e-3));  // of the unscaled gradient
    CHECK(norm == Approx(ref_norm).epsilon(1e-3));
    CHECK(exact_norm > 0.05);
    CHECK(relative_distance(weights, exact_weights, origin) < 0.01);
    CHECK(relative_distance(weights, ref_weights, origin) <= relative_distance(ref_weights, exact_weights, origin) / 4);
    CHECK(worst_of(gradients, exact_gradients).error < 0.02);
    CHECK(worst_of(gradients, ref_gradients).error <= worst_of(ref_gradients, exact_gradients).error / 2);
  }
}

TEST_CASE("mixed precision: every replica's layers read the rounded weights after steps, loads and averages") {
  const Model model = narrow_convnet();
  const Batch batch = random_batch(model, 8);
  for (const Amp amp : kAmpTypes)
    for (const Reduce reduce : kReductions)
      for (const int gpus : cases({1, 2}, {2})) {
        SimulatedGpus machine(gpus);
        DataParallelOptions options = with(on_gpus(gpus, gpus), amp);
        options.reduce = reduce;
        options.ema_decay = 0.5;
        options.bucket_bytes = 4096;
        DataParallel net(model, options), fresh(model, options);
        for (int i = 0; i < 3; ++i) net.train_step(batch, Sgd{.lr = 0.1f, .momentum = 0.9f});
        INFO(name_of(amp) << " on " << gpus << ", reduce " << static_cast<int>(reduce));
        const Tensor before = fresh.predict(batch.images).clone(), trained = net.predict(batch.images).clone();
        fresh.set_weights(net.weights());
        CHECK(bit_equal({{"logits", trained}}, {{"logits", fresh.predict(batch.images).clone()}}));
        CHECK(relative_error(trained, before) > 0.05);
        fresh.set_weights(net.average_weights());
        const Tensor averaged = fresh.predict(batch.images).clone();
        net.swap_average();
        CHECK(bit_equal({{"logits", averaged}}, {{"logits", net.predict(batch.images).clone()}}));
        net.swap_average();
        CHECK(bit_equal({{"logits", trained}}, {{"logits", net.predict(batch.images).clone()}}));
      }
}

TEST_CASE("mixed precision: logical shards give the same bits on 1, 2 and 4 GPUs and in any order of threads") {
  const Model model = two_blocks();
  for (const Amp amp : kAmpTypes) {
    const auto expected = sharded_steps(model, amp, 1);
    for (const int gpus : cases({2, 4}, {2})) {
      INFO(gpus << " GPUs, " << name_of(amp));
      CHECK(bit_equal(sharded_steps(model, amp, gpus), expected));
    }
  }
}

TEST_CASE("mixed precision: gathering weights in 16 bits gives the same bits of training") {
  if (!kSanitized) check_weights_in_16_bits(two_blocks(16), Amp::bfloat16, 2, 16000);
  check_weights_in_16_bits(two_blocks(), Amp::float16, kSanitized ? 2 : 4, 4000);
}

TEST_CASE("mixed precision: setting one tensor leaves the other weights unchanged") {
  SimulatedGpus machine(2);
  simt::simulation().delays = simt::simulation().protect_memory = false;  // faster
  const Model model = narrow_convnet();
  DataParallelOptions options = with(on_gpus(2, 2), Amp::bfloat16);
  options.reduce = Reduce::sharded;
  DataParallel net(model, options), read(model, options);
  const auto train = [&](DataParallel& one, std::uint64_t number) {
    one.train_step(random_batch(model, 8, number), Sgd{.lr = 0.05f, .momentum = 0.9f});
  };
  for (std::uint64_t number = 0; number < 3; ++number) train(net, number), train(read, number);
  auto weights = read.weights();
  Tensor zeros(weights[0].second.shape());
  net.set_weights({{weights[0].first, zeros}});
  weights[0].second = zeros;
  CHECK(bit_equal(net.weights(), weights));
  read.set_weights(weights);
  train(net, 3), train(read, 3);
  CHECK(bit_equal(net.weights(), read.weights()));
}

TEST_CASE("loss scaling: an overflow halves the scale, skips the step on every replica, and does not abort") {
  const Model model = narrow_convnet();
  const Batch batch = random_batch(model, 9);
  std::vector<NamedTensor> expected;
  for (const int gpus : {1, 3})
    for (const Reduce reduce : kReductions) {
      SimulatedGpus machine(gpus);
      DataParallelOptions options = with(on_gpus(gpus, gpus), Amp::float16);
      options.reduce = reduce;
      options.loss_scale.initial = 0x1p25f;
      DataParallel net(model, options);
      INFO(gpus << " GPUs, reduce " << static_cast<int>(reduce));
      const auto origin = net.weights();
      net.train_step(batch, Sgd{.lr = 0.05f, .momentum = 0.9f});
      CHECK(bit_equal(net.weights(), origin));
      Stats stats = net.take_stats();
      CHECK(stats.skipped == 1);
      CHECK(stats.loss_scale == 0x1p24f);
      std::int64_t skipped = 1;
      for (int i = 0; i < 15; ++i) net.train_step(batch, Sgd{.lr = 0.05f, .momentum = 0.9f});
      stats = net.take_stats();
      skipped += stats.skipped;
      CHECK(skipped > 3);
      CHECK(skipped < 14);
      CHECK(stats.loss_scale == std::ldexp(0x1p25f, -static_cast<int>(skipped)));
      CHECK(net.loss_scale()->good_steps == 16 - skipped);
      CHECK(net.replicas_identical());
      CHECK_FALSE(bit_equal(net.weights(), origin));
    }
}

TEST_CASE("loss scaling: the scale grows after the growth interval and is restored bit for bit from its saved value") {
  const Model model = narrow_convnet();
  SimulatedGpus machine(2);
  DataParallelOptions options = with(on_gpus(2, 2), Amp::float16);
  options.loss_scale.initial = 1024;
  options.loss_scale.growth_interval = 2;
  for (const Optimizer& optimizer : optimizers_with_state()) {
    const auto train = [&](DataParallel& net, std::uint64_t first, std::uint64_t last) {
      for (std::uint64_t i = first; i < last; ++i) net.train_step(random_batch(model, 9, i), optimizer);
    };
    DataParallel whole(model, options), begun(model, options), resumed(model, options);
    train(whole, 0, 7);
    CHECK(whole.loss_scale()->scale == 8 * 1024);
    CHECK(whole.loss_scale()->good_steps == 1);
    train(begun, 0, 3);
    CHECK(begun.loss_scale()->good_steps == 1);
    resumed.set_weights(begun.weights());
    resumed.set_optimizer_state(begun.optimizer_state());
    resumed.set_step_count(3);
    resumed.set_loss_scale(*begun.loss_scale());
    train(resumed, 3, 7);
    CHECK(bit_equal(resumed.weights(), whole.weights()));
    CHECK(resumed.loss_scale()->scale == 8 * 1024);
    CHECK(resumed.loss_scale()->good_steps == 1);
  }
}

TEST_CASE("loss scaling: steps skipped by an overflow do not count in AdamW's corrections") {
  const Model model = narrow_convnet();
  SimulatedGpus machine(2);
  for (const Reduce reduce : {Reduce::master, Reduce::all_reduce, Reduce::sharded}) {
    INFO("reduce " << static_cast<int>(reduce));
    DataParallelOptions options = with(on_gpus(2, 2), Amp::float16);
    options.reduce = reduce;
    options.loss_scale.initial = 0x1p30f;
    DataParallel net(model, options);
    std::int64_t overflows = 0;
    do {
      net.train_step(random_batch(model, 9, 0), AdamW{});
      if (net.take_stats().skipped == 0) break;
    } while (++overflows < 60);
    CHECK(overflows > 0);
    options.loss_scale.initial = net.loss_scale()->scale;
    DataParallel fresh(model, options);
    fresh.train_step(random_batch(model, 9, 0), AdamW{});
    for (DataParallel* const one : {&net, &fresh})
      for (std::uint64_t step = 1; step < 3; ++step) one->train_step(random_batch(model, 9, step), AdamW{});
    CHECK(net.optimizer_state().updates == 3);
    CHECK(bit_equal(net.weights(), fresh.weights()));
    CHECK(bit_equal(net.optimizer_state().tensors, fresh.optimizer_state().tensors));
    CHECK(net.replicas_identical());
  }
}

TEST_CASE("mixed precision: steps as CUDA graphs have the bits of eager steps, with overflows and growth") {
  const Model model = narrow_convnet();
  SimulatedGpus machine(2);
  for (const Amp amp : kAmpTypes)
    for (const Reduce reduce : kReductions) {
      DataParallelOptions options = with(on_gpus(2, 2), amp);
      options.reduce = reduce;
      options.loss_scale.initial = 0x1p21f;
      options.loss_scale.growth_interval = 3;
      std::vector<NamedTensor> weights[2];
      std::optional<LossScale> scales[2];
      std::int64_t skipped[2];
      for (const bool graphs : {false, true}) {
        options.graphs = graphs ? Graphs::always : Graphs::never;
        DataParallel net(model, options);
        for (std::uint64_t i = 0; i < 12; ++i)
          net.train_step(random_batch(model, 9, i), Sgd{.lr = 0.05f, .momentum = 0.9f});
        weights[graphs] = net.weights();
        scales[graphs] = net.loss_scale();
        skipped[graphs] = net.take_stats().skipped;
      }
      INFO(name_of(amp) << ", reduce " << static_cast<int>(reduce));
      CHECK(bit_equal(weights[0], weights[1]));
      CHECK(skipped[0] == skipped[1]);
      CHECK((skipped[0] > 0) == (amp == Amp::float16));
      REQUIRE(scales[0].has_value() == (amp == Amp::float16));
      if (!scales[0]) continue;
      CHECK(scales[0]->scale == scales[1]->scale);
      CHECK(scales[0]->good_steps == scales[1]->good_steps);
      CHECK(scales[0]->scale > std::ldexp(0x1p21f, -static_cast<int>(skipped[0])));  // it grew
    }
}

TEST_CASE("mixed precision: memory equals the estimate, and plans show the types") {
  const Model model = narrow_resnet(/*relu=*/true);
  SimulatedGpus machine(2);
  std::size_t inputs = 0;
  for (const Amp amp : {Amp::off, Amp::bfloat16, Amp::float16}) {
    const DataParallelOptions options = with(on_gpus(2, 2), amp);
    DataParallel net(model, options);
    net.prepare({10});
    const MemoryUse estimated = estimate_memory(model, options, {10}).at(1), held = net.memory_use(1);
    INFO(name_of(amp));
    CHECK(estimated.weights == held.weights);
    CHECK(estimated.activations == held.activations);
    // The estimate excludes the copies of a shard's images, labels and samples, which are float32 in every mode.
    if (amp == Amp::off) inputs = held.total() - estimated.total();
    CHECK(estimated.total() + inputs == held.total());
    CHECK((held.weights == 3 * held.gradients / 2) == (amp != Amp::off));
    const std::string plan = net.describe_plan(10);
    CHECK((plan.find("bf16(") != std::string::npos) == (amp == Amp::bfloat16));
    CHECK((plan.find("layers read in float16") != std::string::npos) == (amp == Amp::float16));
  }
}

TEST_CASE("mixed precision: unsupported options are rejected with the reason") {
  const Model model = narrow_convnet();
  const auto message = [](const auto& body) -> std::string {
    try {
      body();
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::usage);
      return error.what();
    }
    return "";
  };
  CHECK_THAT(message([&] { DataParallel(model, with(on_cpus(1), Amp::float16)); }),
             Catch::Contains("float16 requires GPUs"));
  SimulatedGpus machine(1);
  DataParallelOptions options = with(on_gpus(1, 1), Amp::float16);
  options.loss_scale.backoff = 1;
  CHECK_THAT(message([&] { DataParallel(model, options); }), Catch::Contains("loss scale"));
  options.loss_scale.backoff = 0.5f;
  DataParallel net(model, options), plain(model, with(on_gpus(1, 1), Amp::bfloat16));
  CHECK_THAT(message([&] { net.backward(net.forward(random_batch(model, 2).images)); }), Catch::Contains("train_step"));
  CHECK_THAT(message([&] { net.set_loss_scale({0, 0}); }), Catch::Contains("positive"));
  CHECK_THAT(message([&] { plain.set_loss_scale({1, 0}); }), Catch::Contains("float16"));
  CHECK_FALSE(plain.loss_scale().has_value());
}
