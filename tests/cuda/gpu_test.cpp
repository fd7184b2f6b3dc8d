// The CUDA backend on a real GPU: the engine against the float64 reference, with equal results for every number of
// replicas.
#include "cuda/comm/collectives.h"
#include "cuda/engine/narrow_nets.h"
#include "support/rounded_sums.h"
#include "support/snapshots.h"

using namespace dp;
using namespace dp::test;

namespace {

// The number of GPUs. Skips the test if there are none.
int gpu_count() {
  const DeviceProbe probe = probe_devices(DeviceKind::cuda);
  if (probe.count == 0) mark_skipped(probe.reason);
  return probe.count;
}

void check_narrow(const Model& model, BatchNormMode norm, std::int64_t rows) {
  const int devices = gpu_count();
  if (devices == 0) return;
  const Batch batch = random_batch(model, rows);
  for (const int replicas : {1, 2, 4}) {
    DataParallelOptions oracle = on_reference();
    if (norm != BatchNormMode::sync) oracle.devices.assign(static_cast<std::size_t>(replicas), oracle.devices.front());
    oracle.batch_norm = norm;
    const Outcome expected = forward_and_backward(model, oracle, batch);
    const auto origin = DataParallel(model, oracle).weights(), moved = step(model, oracle, batch);
    for (const Reduce reduce : kReductions)
      check_against_reference(model, batch, on_gpus(replicas, devices), norm, reduce, expected, moved, origin);
  }
}

void check_one_result(const Model& model, std::int64_t rows, BatchNormMode norm) {
  const int devices = gpu_count();
  if (devices == 0) return;
  std::vector<NamedTensor> expected;
  for (const int replicas : {1, 2, 4})
    for (const Reduce reduce : kReductions) {
      DataParallelOptions options = on_gpus(replicas, devices);
      options.logical_shards = 4;
      options.reduce = reduce;
      options.batch_norm = norm;
      const auto got = five_steps(model, options, rows);
      if (expected.empty()) expected = got;
      INFO(replicas << " replicas, reduce " << static_cast<int>(reduce));
      CHECK(bit_equal(got, expected));
    }
}

// Compares one step of a network in its real size on the GPU with the CPU. Forward: two float32 results, each within
// 1e-5 of float64. `gradients`: tolerance relative to the norm of each tensor's gradient.
void check_real_size(const Model& model, double gradients) {
  const int devices = gpu_count();
  if (devices == 0) return;
  const Batch batch = random_batch(model, 8);
  const Outcome expected = forward_and_backward(model, on_cpus(1), batch);
  const auto origin = DataParallel(model, on_cpus(1)).weights(), moved = step(model, on_cpus(1), batch);
  const Outcome got = forward_and_backward(model, on_gpus(1, devices), batch);
  const Worst gradient = worst_of(got.gradients, expected.gradients), state = worst_of(got.state, expected.state);
  INFO("gradient " << gradient.name << ", state " << state.name);
  CHECK(gradient.error <= gradients);
  CHECK(state.error <= 5e-5);
  CHECK(relative_error(got.predictions, expected.predictions) <= 5e-5);
  const Worst worst = worst_of(step(model, on_gpus(1, devices), batch), moved, &origin);
  INFO("worst: " << worst.name);
  CHECK(worst.error <= 2 * gradients);
}

}  // namespace

TEST_CASE("GPU: a narrow mnist_convnet equals the reference on 1, 2 and 4 replicas in every reduction") {
  check_narrow(narrow_convnet(), BatchNormMode::master, 9);
}

TEST_CASE("GPU: a narrow resnet18 without ReLUs equals the reference on 1, 2 and 4 replicas in every reduction") {
  const Model model = narrow_resnet(/*relu=*/false);
  check_narrow(model, BatchNormMode::sync, 9);
  // With fewer than five images per shard, the last normalisations (1x1 images) are ill-conditioned.
  for (const BatchNormMode norm : {BatchNormMode::master, BatchNormMode::pooled}) check_narrow(model, norm, 22);
}

TEST_CASE(
    "GPU: L2 of a narrow mnist_convnet with dropout has the same bits on 1, 2 and 4 replicas in every reduction") {
  check_one_result(narrow_convnet(), 10, BatchNormMode::master);
}

TEST_CASE(
    "GPU: L2 of a narrow resnet18 has the same bits on 1, 2 and 4 replicas in every mode of batch normalisation") {
  const Model model = narrow_resnet(/*relu=*/true);
  for (const BatchNormMode norm : {BatchNormMode::master, BatchNormMode::pooled, BatchNormMode::sync})
    check_one_result(model, 13, norm);
}

TEST_CASE("GPU: a bfloat16 reduction over p2p has the bits of the fixed tree") {
  const int devices = gpu_count();
  if (devices == 0) return;
  for (const int replicas : {2, 4}) {
    DataParallelOptions options = on_gpus(replicas, devices);
    options.comm = Comm::p2p;
    check_rounded_sums(narrow_convnet(), options, 9);
    check_rounded_training(narrow_convnet(), without_dropout(options), 9);
  }
}

// On one GPU the communicator has one rank. This still checks that the library is found, accepts the calls, and
// terminates.
TEST_CASE("GPU: every collective works over nccl between the GPUs of this machine") {
  const int devices = gpu_count();
  if (devices == 0) return;
  try {
    Ranks ranks(first_gpus(std::min(devices, 8)), "nccl");
    for (const std::int64_t count : {std::int64_t{1}, 3 * kernels::kNormBlock + 7, 64 * kernels::kNormBlock})
      for (const int shards : {1, 2}) {
        check_all<float>(ranks, count, shards, whole_numbers<float>);
        check_all<kernels::BFloat16>(ranks, count, shards, whole_numbers<kernels::BFloat16>);
      }
    check_all<double>(ranks, 3001, 1, whole_numbers<double>);
    check_parts(ranks, ranks.size() - 1);
  } catch (const Error& error) {
    if (std::string(error.what()).find("nccl cannot be used") == std::string::npos) throw;
    mark_skipped(error.what());
  }
}

// A value within rounding of a kink may take different sides on CPU and GPU. This can happen to about one of this
// network's half million values. Its gradient is at most about a hundredth of the norm.
TEST_CASE("GPU: a step of full-size mnist_convnet equals the CPU's") {
  check_real_size(models::mnist_convnet({}), 1e-2);
}

// Twenty layers of rounding on each side. The CPU's worst gradient differs from float64 by 3e-5.
TEST_CASE("GPU: a step of full-size resnet18 without ReLUs on 32x32 images equals the CPU's") {
  check_real_size(models::resnet18({.classes = 10, .input = {3, 32, 32}, .relu = false}), 2e-4);
}

TEST_CASE("GPU: a snapshot is read while later steps run") {
  const int devices = gpu_count();
  if (devices == 0) return;
  for (const int replicas : {1, 2}) {
    DataParallelOptions options = on_gpus(replicas, devices);
    options.ema_decay = 0.9;
    check_late_snapshot(narrow_resnet(/*relu=*/true), options);
  }
}

// For compute-sanitizer, which is tens of times slower.
TEST_CASE("GPU: few steps of both narrow networks", "[.sanitizers]") {
  const int devices = gpu_count();
  if (devices == 0) return;
  DataParallelOptions options = on_gpus(2, devices);
  options.comm = Comm::p2p;  // NCCL's kernels wait for each other, but compute-sanitizer serialises launches
  five_steps(narrow_convnet(), options, 6);
  five_steps(narrow_resnet(/*relu=*/true), options, 10);
}

// Channel counts are multiples of eight, and 64 in the third stage: this covers the tensor-core kernels, including
// those with cells resident in shared memory.
TEST_CASE("GPU: few steps in bfloat16 on tensor cores", "[.sanitizers]") {
  const int devices = gpu_count();
  if (devices == 0) return;
  DataParallelOptions options = on_gpus(2, devices);
  options.comm = Comm::p2p;
  options.amp = Amp::bfloat16;
  five_steps(models::resnet18({.classes = 10, .input = {3, 8, 8}, .width = 16}), options, 10);
}
