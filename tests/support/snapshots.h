// Snapshots: what the tests of several kinds of device share.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "dp/checkpoint.h"
#include "dp/memory.h"
#include "support/catch.h"
#include "support/training.h"

namespace dp::test {

struct SnapshotSetting {
  std::string name;
  std::function<void(DataParallelOptions&)> set;
  int devices = 2;
};

inline Checkpoint state_of(DataParallel& net) {
  Checkpoint state;
  state.weights = net.weights(), state.optimizer = net.optimizer_state();
  if (net.options().ema_decay) state.average = net.average_weights(), state.average_updates = net.average_updates();
  return state;
}

inline void check_equal(const Checkpoint& has, const Checkpoint& wanted) {
  CHECK(bit_equal(has.weights, wanted.weights));
  CHECK(bit_equal(has.average, wanted.average));
  CHECK(has.average_updates == wanted.average_updates);
  CHECK(has.optimizer.optimizer == wanted.optimizer.optimizer);
  CHECK(has.optimizer.updates == wanted.optimizer.updates);
  CHECK(bit_equal(has.optimizer.tensors, wanted.optimizer.tensors));
}

// Bytes of the copies on the devices.
inline std::size_t snapshot_bytes(const DataParallel& net) {
  std::size_t sum = 0;
  for (int device = 0; device < static_cast<int>(net.options().devices.size()); ++device)
    sum += net.memory_use(device).snapshot;
  return sum;
}

// Two further steps are done, and one runs, when the snapshot on the GPU is read.
inline void check_late_snapshot(const Model& model, const DataParallelOptions& options) {
  const AdamW optimizer{.lr = 0.01f};
  std::size_t estimated = 0;
  for (const MemoryUse& use : estimate_memory(model, options, {8}, {}, optimizer)) estimated += use.snapshot;
  CHECK(estimated > 0);
  DataParallel net(model, options);
  std::vector<Batch> batches;  // read until the step after next
  for (std::uint64_t step = 0; step < 4; ++step) batches.push_back(random_batch(model, 8, step));
  net.train_step(batches[0], optimizer);
  CHECK(snapshot_bytes(net) == 0);
  const Checkpoint wanted = state_of(net);
  Checkpoint checkpoint;
  const std::function<void()> copy = net.snapshot(checkpoint);
  CHECK(snapshot_bytes(net) == estimated);
  for (std::size_t step = 1; step < 3; ++step) net.train_step(batches[step], optimizer);
  std::thread reading(copy);
  net.train_step(batches[3], optimizer);
  reading.join();
  check_equal(checkpoint, wanted);
  const Checkpoint later = state_of(net);
  net.snapshot(checkpoint)();
  check_equal(checkpoint, later);
  CHECK(snapshot_bytes(net) == estimated);
}

}  // namespace dp::test
