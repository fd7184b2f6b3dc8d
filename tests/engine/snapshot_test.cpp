// Snapshots: the state of one step, copied while the next step runs.
#include <chrono>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/test_modes.h"
#include "support/snapshots.h"

using namespace dp;
using namespace dp::test;

namespace {

const SnapshotSetting kSettings[] = {
    {"one replica", [](auto&) {}, 1},
    {"master", [](auto& o) { o.reduce = Reduce::master; }, 3},
    {"all-reduce", [](auto& o) { o.reduce = Reduce::all_reduce; }, 3},
    {"sharded, buckets that end inside tensors", [](auto& o) { o.reduce = Reduce::sharded, o.bucket_bytes = 1500; }, 3},
    {"average", [](auto& o) { o.ema_decay = 0.9; }},
    {"clipped", [](auto& o) { o.clip_grad_norm = 0.3; }},
    {"pipeline", [](auto& o) { o.pipeline = {.stages = 2, .micro_batches = 2}; }, 4},
    {"pipeline, average", [](auto& o) { o.pipeline = {.stages = 2, .micro_batches = 2}, o.ema_decay = 0.5; }},
};

struct Modes {
  Modes(bool threaded, bool discrete) { engine::test_modes() = {threaded, 3, discrete}; }
  ~Modes() { engine::test_modes() = {}; }
};

}  // namespace

TEST_CASE("a snapshot has the state of its step, though training goes on while it is copied") {
  const Model model = residual_net();
  const AdamW optimizer{.lr = 0.01f};
  for (const SnapshotSetting& setting : kSettings)
    for (const auto& [threaded, discrete] : {std::pair(false, false), std::pair(true, false), std::pair(true, true)}) {
      INFO(setting.name << ", threaded " << threaded << ", discrete " << discrete);
      const Modes modes(threaded, discrete);
      DataParallelOptions options = on_cpus(setting.devices);
      setting.set(options);
      DataParallel net(model, options), alone(model, options);
      Checkpoint checkpoint;
      std::vector<Batch> batches;  // read until the step after next
      for (std::uint64_t step = 0; step < 3; ++step) batches.push_back(random_batch(model, 8, step));
      for (const Batch& batch : batches) {
        const Checkpoint wanted = state_of(net);
        std::thread copying([copy = net.snapshot(checkpoint)] {
          std::this_thread::sleep_for(std::chrono::milliseconds(5));  // the update comes first, unless it waits
          copy();
        });
        net.train_step(batch, optimizer);
        copying.join();
        check_equal(checkpoint, wanted);
        alone.train_step(batch, optimizer);
      }
      check_equal(state_of(net), state_of(alone));
    }
}

TEST_CASE("calls that change the state wait for a snapshot, and one that is dropped holds nothing back") {
  const Model model = residual_net();
  DataParallelOptions options = on_cpus(2);
  options.ema_decay = 0.9;
  DataParallel net(model, options);
  const Sgd optimizer{.lr = 0.1f, .momentum = 0.9f};
  net.train_step(random_batch(model, 8), optimizer);
  const auto others = DataParallel(model, on_cpus(1)).weights();
  for (const std::function<void()>& change : std::initializer_list<std::function<void()>>{
           [&] { net.set_weights(others); }, [&] { net.swap_average(); }, [&] { net.set_optimizer_state({}); },
           [&] { net.train_step(random_batch(model, 8), AdamW{}); },
           [&] {
             net.forward(random_batch(model, 8).images);
             net.backward(Tensor(Shape{8, model.output()[0]}));
             net.step(optimizer);
           }}) {
    const Checkpoint wanted = state_of(net);
    Checkpoint checkpoint;
    std::thread copying([copy = net.snapshot(checkpoint)] {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      copy();
    });
    change();
    copying.join();
    check_equal(checkpoint, wanted);
  }
  Checkpoint checkpoint;
  net.snapshot(checkpoint);
  net.train_step(random_batch(model, 8), optimizer);
}

TEST_CASE("a further snapshot uses the memory of the last one, unless the program still uses it") {
  const Model model = residual_net();
  DataParallel net(model, on_cpus(2));
  const Sgd optimizer{.lr = 0.1f, .momentum = 0.9f};
  net.train_step(random_batch(model, 8), optimizer);
  Checkpoint checkpoint;
  net.snapshot(checkpoint)();
  const void* const memory = checkpoint.weights.front().second.raw();
  const Tensor kept = checkpoint.optimizer.tensors.front().second;
  const Tensor before = kept.clone();
  net.train_step(random_batch(model, 8, 1), optimizer);
  net.snapshot(checkpoint)();
  CHECK(checkpoint.weights.front().second.raw() == memory);
  CHECK(bit_equal({{"", kept}}, {{"", before}}));
  check_equal(checkpoint, state_of(net));
  net.train_step(random_batch(model, 8, 2), AdamW{});
  net.snapshot(checkpoint)();
  check_equal(checkpoint, state_of(net));
}
