// The optimizer's state: what it holds, how it is named, and how it is restored.
#include <cstring>
#include <limits>
#include <new>

#include "dp/checkpoint.h"
#include "dp/error.h"
#include "engine/optimizer/optimizer.h"
#include "kernels/step_state.h"
#include "support/catch.h"
#include "support/temporary_folder.h"
#include "support/training.h"

namespace {

using namespace dp;
using namespace dp::test;

constexpr Sgd kMomentum{.lr = 0.1f, .momentum = 0.9f};

}  // namespace

// The simulated CUDA takes bytes that look like an address for a pointer.
TEST_CASE("every byte of a step's inputs is set, because the devices receive all of them") {
  std::vector<std::string> bytes;
  for (const int before : {0x00, 0xff}) {
    alignas(kernels::StepInputs) unsigned char memory[sizeof(kernels::StepInputs)];
    std::memset(memory, before, sizeof memory);
    __asm__ volatile("" : : "r"(memory) : "memory");  // keeps the bytes up to here
    auto* const inputs = ::new (memory) kernels::StepInputs;
    inputs->update.options = RuleOptions::of(Sgd{.momentum = 0.9f});
    bytes.emplace_back(reinterpret_cast<const char*>(memory), sizeof memory);
  }
  CHECK(bytes[0] == bytes[1]);
}

TEST_CASE("the state names the optimizer, its slots and its updates, and is empty until an update needs it") {
  const Model model = small_convnet();
  DataParallel net(model, on_cpus(2));
  net.train_step(random_batch(model, 8), Sgd{.lr = 0.1f});
  CHECK(net.optimizer_state().optimizer.empty());
  CHECK(net.optimizer_state().tensors.empty());
  net.train_step(random_batch(model, 8), kMomentum);
  const OptimizerState state = net.optimizer_state();
  CHECK(state.optimizer == "sgd");
  CHECK(state.updates == 1);  // of this state
  REQUIRE(state.tensors.size() == model.parameters().size());
  for (std::size_t i = 0; i < state.tensors.size(); ++i) {
    CHECK(state.tensors[i].first == "momentum_buffer." + model.parameters()[i].name);
    CHECK(state.tensors[i].second.shape() == model.parameters()[i].shape);
  }
}

TEST_CASE("skipped steps are not updates, before and after the statistics are taken") {
  const Model model = small_convnet();
  DataParallelOptions options = on_cpus(2);
  options.on_nonfinite = OnNonfinite::skip;
  DataParallel net(model, options);
  Batch bad = random_batch(model, 8);
  bad.images = bad.images.clone();
  bad.images.span<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  net.train_step(random_batch(model, 8), kMomentum);
  net.train_step(bad, kMomentum);
  CHECK(net.optimizer_state().updates == 1);
  CHECK(net.take_stats().skipped == 1);
  CHECK(net.optimizer_state().updates == 1);
  net.train_step(random_batch(model, 8), kMomentum);
  CHECK(net.optimizer_state().updates == 2);
}

TEST_CASE("skipped steps do not count in AdamW's corrections, before and after the statistics are taken") {
  const Model model = small_convnet();
  DataParallelOptions options = on_cpus(2);
  options.on_nonfinite = OnNonfinite::skip;
  DataParallel expected(model, options);
  for (std::uint64_t step = 0; step < 3; ++step) expected.train_step(random_batch(model, 8, step), AdamW{});
  Batch bad = random_batch(model, 8);
  bad.images = bad.images.clone();
  bad.images.span<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  for (const bool taken : {false, true}) {
    DataParallel net(model, options);
    for (std::uint64_t step = 0; step < 3; ++step) {
      net.train_step(random_batch(model, 8, step), AdamW{});
      net.train_step(bad, AdamW{});
      if (taken) CHECK(net.take_stats().skipped == 1);
    }
    CHECK(bit_equal(net.weights(), expected.weights()));
    CHECK(bit_equal(net.optimizer_state().tensors, expected.optimizer_state().tensors));
  }
}

TEST_CASE("options of AdamW that are out of range are rejected, and the network stays usable") {
  const Model model = small_convnet();
  DataParallel net(model, on_cpus(1));
  const Batch batch = random_batch(model, 8);
  CHECK_THROWS_WITH(net.train_step(batch, AdamW{.beta1 = 1}), Catch::Contains("beta") && Catch::Contains("1"));
  CHECK_THROWS_WITH(net.train_step(batch, AdamW{.beta2 = -0.5}), Catch::Contains("beta"));
  CHECK_THROWS_WITH(net.train_step(batch, AdamW{.eps = 0}), Catch::Contains("eps"));
  CHECK_THROWS_WITH(net.train_step(batch, AdamW{.weight_decay = -1}), Catch::Contains("weight-decay is -1"));
  CHECK_THROWS_WITH(net.step(AdamW{.lr = -1}), Catch::Contains("lr is -1"));
  net.train_step(batch, AdamW{});
  CHECK(net.optimizer_state().updates == 1);
}

TEST_CASE("a state of an unknown optimizer, slot or parameter is rejected and changes nothing") {
  const Model model = small_convnet();
  DataParallel net(model, on_cpus(2));
  net.train_step(random_batch(model, 8), kMomentum);
  const OptimizerState before = net.optimizer_state();
  const Tensor bias(model.parameters()[1].shape);
  const auto refused = [&](const OptimizerState& state, const std::string& text) {
    CHECK_THROWS_WITH(net.set_optimizer_state(state), Catch::Contains(text));
  };
  refused({"velocity", 1, {}}, "'velocity'");
  refused({"sgd", 1, {{"velocity.conv1.bias", bias}}}, "velocity.conv1.bias");
  refused({"sgd", 1, {{"conv1.bias", bias}}}, "conv1.bias");
  refused({"sgd", 1, {{"momentum_buffer.conv9.bias", bias}}}, "conv9.bias");
  CHECK(bit_equal(net.optimizer_state().tensors, before.tensors));
  CHECK(net.optimizer_state().updates == before.updates);
}

TEST_CASE("prepare without an optimizer keeps a state that was set, and allocates momentum if there is none") {
  const Model model = small_convnet();
  DataParallel source(model, on_cpus(1)), net(model, on_cpus(2));
  source.train_step(random_batch(model, 8), AdamW{});
  const OptimizerState state = source.optimizer_state();
  net.set_optimizer_state(state);
  net.prepare({8});
  CHECK(net.optimizer_state().optimizer == "adamw");
  CHECK(bit_equal(net.optimizer_state().tensors, state.tensors));
  DataParallel fresh(model, on_cpus(2));
  fresh.prepare({8});
  CHECK(fresh.optimizer_state().optimizer == "sgd");
}

TEST_CASE("evaluations and updates without state hold no memory for it") {
  const Model model = small_convnet();
  DataParallel net(model, on_cpus(2));
  net.prepare({}, {8});
  CHECK(net.memory_use(0).optimizer == 0);
  net.train_step(random_batch(model, 8), AdamW{});
  const std::size_t adamw = net.memory_use(0).optimizer;
  net.train_step(random_batch(model, 8), kMomentum);
  CHECK(net.memory_use(0).optimizer == adamw / 2);
  net.train_step(random_batch(model, 8), AdamW{});
  net.train_step(random_batch(model, 8), Sgd{.lr = 0.1f});
  CHECK(net.memory_use(0).optimizer == 0);
  CHECK(net.optimizer_state().optimizer.empty());
}

TEST_CASE("a state has the slots that the options use, and begins at zero if they change") {
  const Model model = small_convnet();
  DataParallel net(model, on_cpus(2)), fresh(model, on_cpus(2));
  const RmsProp plain, centered{.centered = true}, both{.momentum = 0.9f, .centered = true};
  const auto slots = [&](const RmsProp& optimizer) {
    for (std::uint64_t step = 0; step < 2; ++step) net.train_step(random_batch(model, 8, step), optimizer);
    const OptimizerState state = net.optimizer_state();
    CHECK(state.updates == 2);
    const std::size_t parameters = model.parameters().size();
    std::string text;
    for (std::size_t i = 0; i < state.tensors.size(); i += parameters)
      text += state.tensors[i].first.substr(0, state.tensors[i].first.find('.')) + " ";
    return text;
  };
  CHECK(slots(plain) == "square_avg ");
  const std::size_t bytes = net.memory_use(0).optimizer;
  CHECK(slots(both) == "square_avg momentum_buffer grad_avg ");
  CHECK(net.memory_use(0).optimizer == 3 * bytes);
  fresh.set_weights(net.weights());
  fresh.set_step_count(net.step_count());
  CHECK(slots(centered) == "square_avg grad_avg ");
  for (std::uint64_t step = 0; step < 2; ++step) fresh.train_step(random_batch(model, 8, step), centered);
  CHECK(bit_equal(net.weights(), fresh.weights()));
}

TEST_CASE("an optimizer that follows updates without state begins with update 0") {
  const Model model = small_convnet();
  DataParallel net(model, on_cpus(2));
  for (int step = 0; step < 2; ++step) {
    net.train_step(random_batch(model, 8), AdamW{});
    CHECK(net.optimizer_state().updates == 1);
    net.train_step(random_batch(model, 8), Sgd{.lr = 0.1f});
  }
}

TEST_CASE("a checkpoint keeps the state, and one without an optimizer's name is of SGD with momentum") {
  const TemporaryFolder temp;
  const auto values = [](float value) {
    Tensor tensor(Shape{2});
    for (float& one : tensor.span<float>()) one = value;
    return tensor;
  };
  Checkpoint checkpoint;
  checkpoint.state.model = "m";
  checkpoint.state.dataset = "d";
  checkpoint.state.step = 7;
  checkpoint.state.skipped = 2;
  checkpoint.state.global_batch = 1;
  checkpoint.weights = {{"w", values(1)}};
  checkpoint.optimizer = {"sgd", 4, {{"momentum_buffer.w", values(3)}}};
  save_checkpoint(temp / "new", checkpoint);
  const OptimizerState kept = load_checkpoint(temp / "new").optimizer;
  CHECK(kept.optimizer == "sgd");
  CHECK(kept.updates == 4);
  CHECK(bit_equal(kept.tensors, checkpoint.optimizer.tensors));

  checkpoint.optimizer = {"", 0, {{"w", values(3)}}};  // writes what versions without OptimizerState wrote
  save_checkpoint(temp / "old", checkpoint);
  const OptimizerState old = load_checkpoint(temp / "old").optimizer;
  CHECK(old.optimizer == "sgd");
  CHECK(old.updates == 5);
  CHECK(bit_equal(old.tensors, kept.tensors));
}
