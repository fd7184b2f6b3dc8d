// Snapshots on GPUs: the state of one step, copied within the GPU's memory and read while later steps run.
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "cuda/simulated_gpus.h"
#include "dp/memory.h"
#include "support/snapshots.h"

using namespace dp;
using namespace dp::test;

namespace {

const SnapshotSetting kSettings[] = {
    {"one GPU", [](auto&) {}, 1},
    {"all-reduce, average", [](auto& o) { o.reduce = Reduce::all_reduce, o.ema_decay = 0.9; }},
    {"sharded, buckets that end inside tensors", [](auto& o) { o.reduce = Reduce::sharded, o.bucket_bytes = 1500; }, 3},
    {"float16", [](auto& o) { o.amp = Amp::float16; }},
    {"pipeline", [](auto& o) { o.pipeline = {.stages = 2, .micro_batches = 2}, o.ema_decay = 0.5; }, 4},
};

}  // namespace

TEST_CASE("simulated GPUs: a snapshot is read while later steps run") {
  for (const SnapshotSetting& setting : kSettings) {
    INFO(setting.name);
    SimulatedGpus machine(setting.devices);
    DataParallelOptions options = on_gpus(setting.devices, setting.devices);
    setting.set(options);
    check_late_snapshot(residual_net(), options);
  }
}

TEST_CASE("simulated GPUs: without room for a copy on the GPU a snapshot is copied to the host at once") {
  const Model model = residual_net();
  const Sgd optimizer{.lr = 0.01f, .momentum = 0.9f};
  SimulatedGpus machine(1);
  const std::size_t needed = estimate_memory(model, on_gpus(1, 1), {8}, {}, optimizer).front().snapshot;
  DataParallel net(model, on_gpus(1, 1));
  const std::vector<Batch> batches{random_batch(model, 8, 0), random_batch(model, 8, 1)};
  net.train_step(batches[0], optimizer);
  const Checkpoint wanted = state_of(net);
  Checkpoint checkpoint;
  const std::size_t whole = simt::simulation().device_memory;
  simt::simulation().device_memory = whole - free_memory(net.options().devices.front()) + needed * 3 / 2;
  const std::function<void()> copy = net.snapshot(checkpoint);
  CHECK(snapshot_bytes(net) == 0);
  simt::simulation().device_memory = whole;
  net.train_step(batches[1], optimizer);
  copy();
  check_equal(checkpoint, wanted);
}

TEST_CASE("simulated GPUs: a further snapshot waits until the one before has been read") {
  const Model model = residual_net();
  const Sgd optimizer{.lr = 0.01f, .momentum = 0.9f};
  SimulatedGpus machine(1);
  DataParallel net(model, on_gpus(1, 1));
  const Batch batch = random_batch(model, 8);
  net.train_step(batch, optimizer);
  const Checkpoint wanted = state_of(net);
  Checkpoint first, second;
  std::thread reading([copy = net.snapshot(first)] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // the next one comes first, unless it waits
    copy();
  });
  net.train_step(batch, optimizer);
  const Checkpoint later = state_of(net);
  const std::function<void()> copy = net.snapshot(second);
  reading.join();
  copy();
  check_equal(first, wanted);
  check_equal(second, later);
  net.snapshot(second);  // dropped
  net.snapshot(second)();
  check_equal(second, later);
}
