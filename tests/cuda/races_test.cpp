// Training under the simulation's race detector: within kernels, and between the streams of all devices.
#include "cuda/engine/narrow_nets.h"
#include "cuda/engine/rules_runs.h"
#include "support/device_images.h"

using namespace dp;
using namespace dp::test;

namespace {

const Model& tiny() {
  static const Model model = models::mnist_convnet({.classes = 10, .width = 2, .input = {1, 10, 10}});
  return model;
}

// More than one block of weights, so that both replicas have a slice.
const Model& two_layers() {
  static const Model model = models::mlp({.input = {1, 14, 14}, .hidden = {40}});
  return model;
}

// One eager step, one recorded step, one graph launch.
void three_steps(const Model& model, const DataParallelOptions& options) {
  DataParallel net(model, options);
  for (std::uint64_t i = 0; i < 3; ++i)
    net.train_step(random_batch(model, 5, i), Sgd{.lr = 0.05f, .momentum = 0.9f, .weight_decay = 1e-3f});
  CHECK(net.take_stats().samples == 15);
  CHECK(net.replicas_identical());
}

struct LeftOut {
  int waits = 0, found = 0;
  friend bool operator==(const LeftOut&, const LeftOut&) = default;
};
std::string to_string(const LeftOut& left_out) {
  return std::to_string(left_out.found) + " of " + std::to_string(left_out.waits);
}

// Skips each wait that a device enqueues in two steps, one per run. Returns the number of waits and the number of
// reported omissions.
LeftOut leave_out_each_wait(DataParallelOptions options, int device, bool for_other_device) {
  SimulatedGpus machine(2);
  simt::simulation().delays = simt::simulation().protect_memory = false;  // faster
  options.graphs = Graphs::never;
  DataParallel net(two_layers(), options);
  std::uint64_t number = 0;
  const auto train = [&](int steps) {
    for (int i = 0; i < steps; ++i)
      net.train_step(random_batch(two_layers(), 4, number++), Sgd{.lr = 0.05f, .momentum = 0.9f});
    net.take_stats();
  };
  train(8);  // until the pinned slots have grown, which waits for the devices
  CHECK(simt::take_reports().empty());
  LeftOut result;
  for (;;) {
    simt::simulation().left_out_wait = {
        .device = device, .for_other_device = for_other_device, .number = result.waits + 1};
    train(2);
    const bool none_left = std::exchange(simt::simulation().left_out_wait.number, 0) > 0;
    train(1);  // a wait of the last step may be missed in the next one
    const std::vector<std::string> reports = simt::take_reports();
    if (none_left) {
      CHECK(reports.empty());
      return result;
    }
    ++result.waits;
    result.found += std::any_of(reports.begin(), reports.end(), [](const std::string& report) {
      return report.find("no event orders them") != std::string::npos;
    });
  }
}

}  // namespace

// The engine's waits. The compute stream waits for the weights before every forward pass. The communication stream
// waits for the gradients before every reduction. A step waits for its inputs before it uses them. An upload of inputs
// waits for a free slot.
TEST_CASE("race detector: each wait left out of the engine is detected as the page on the simulated CUDA states",
          "[nightly]") {
  std::string table = "| reduce | the engine's waits | waits within p2p |\n|---|---|---|\n";
  for (const auto& [reduce, name] : {std::pair(Reduce::master, "master"), std::pair(Reduce::all_reduce, "allreduce"),
                                     std::pair(Reduce::sharded, "sharded")}) {
    DataParallelOptions options = on_gpus(2, 2);
    options.reduce = reduce;
    const LeftOut own = leave_out_each_wait(options, 0, false), of_peers = leave_out_each_wait(options, 0, true);
    INFO(name);
    CHECK(own == LeftOut{8, 5});  // silent: the first one, and those for a free input slot, follow a host wait
    table += std::string("| ") + name + " | " + to_string(own) + " | " + to_string(of_peers) + " |\n";
  }
  INFO(table);
  CHECK(read_text(DP_SIMT_PAGE).find(table) != std::string::npos);
}

// Each stage waits for the other one's tensors, and before it sends, for the reading of the tensor before the last.
// With 1f1b and two micro-batches the latter waits are silent: a stage sends a tensor only after it has received one
// that the other stage computed after its reading. With gpipe the first stage sends further ahead.
TEST_CASE("race detector: each tensor that a pipeline stage reads or overwrites too early is detected", "[nightly]") {
  DataParallelOptions options = on_gpus(2, 2);
  options.pipeline = {.stages = 2, .micro_batches = 2};
  CHECK(leave_out_each_wait(options, 0, true) == LeftOut{8, 4});
  CHECK(leave_out_each_wait(options, 1, true) == LeftOut{8, 4});
  options.pipeline = {.stages = 2, .micro_batches = 4, .schedule = PipelineSchedule::gpipe};
  CHECK(leave_out_each_wait(options, 0, true) == LeftOut{16, 12});
  // With the waits of the second queue. Silent: those of the engine that are listed above.
  CHECK(to_string(leave_out_each_wait(options, 0, false)) == "20 of 26");
  CHECK(to_string(leave_out_each_wait(options, 1, false)) == "20 of 26");
}

// Skips a wait while a step is recorded (its graph then lacks an edge) or at a launch. The waits of replica 0, in
// order:
// - Two buckets with three waits each: for replica 1's gradients, for its slices, and until it has read. The last one
// is silent for both buckets: the next bucket's first wait, or the end of the graph, orders the same accesses. The wait
// for the second bucket's slices is silent, too: replica 1 has no slice of it.
// - The wait that joins replica 1's stream. Without it capture fails.
// - A wait before each of three launches, for replica 1's uploads. The first is silent: the host waits for both devices
// before it records.
TEST_CASE("race detector: each edge left out of a step's graph is detected", "[nightly]") {
  SimulatedGpus machine(2);
  simt::simulation().delays = simt::simulation().protect_memory = false;  // faster
  const Model model = narrow_convnet();
  int edges = 0, found = 0, refused = 0;
  for (int number = 1; edges < number; ++number) {
    DataParallelOptions options = on_gpus(2, 2);
    options.reduce = Reduce::all_reduce;
    options.bucket_bytes = 4000;
    DataParallel net(model, options);
    const auto train = [&](int steps) {
      for (int i = 0; i < steps; ++i) net.train_step(random_batch(model, 2), Sgd{.lr = 0.05f, .momentum = 0.9f});
      net.take_stats();
    };
    train(1);
    CHECK(simt::take_reports().empty());
    simt::simulation().left_out_wait = {.device = 0, .for_other_device = true, .number = number};
    train(3);
    const bool none_left = std::exchange(simt::simulation().left_out_wait.number, 0) > 0;
    const std::vector<std::string> reports = simt::take_reports();
    if (none_left) break;
    ++edges;
    refused += net.describe_steps().find("cudaErrorStreamCaptureUnjoined") != std::string::npos;
    found += std::any_of(reports.begin(), reports.end(), [](const std::string& report) {
      return report.find("no event orders them") != std::string::npos;
    });
  }
  CHECK(edges == 10);
  CHECK(refused == 1);
  CHECK(found == 5);
}

TEST_CASE("race detector: steps of mnist_convnet are free of races in every reduction") {
  for (const int gpus : {1, 3})
    for (const Reduce reduce : kReductions) {
      SimulatedGpus machine(gpus);
      DataParallelOptions options = on_gpus(gpus, gpus);
      options.reduce = reduce;
      options.bucket_bytes = 4000;
      options.clip_grad_norm = reduce == Reduce::sharded ? std::optional(1.0) : std::nullopt;
      five_steps(tiny(), options, 5);
    }
}

TEST_CASE("race detector: steps of a residual network with synchronised statistics are free of races") {
  for (const simt::Peer peers : {simt::Peer::works, simt::Peer::none}) {
    SimulatedGpus machine(2, peers);
    DataParallelOptions options = on_gpus(2, 2);
    options.batch_norm = BatchNormMode::sync;
    if (peers == simt::Peer::none) three_steps(residual_net(/*relu=*/true, /*dropout=*/true), options);
    options.logical_shards = 4;
    options.ema_decay = 0.9;
    five_steps(rules_model(), options, 5);
  }
}

TEST_CASE("race detector: steps over nccl with two communicators are free of races") {
  SimulatedGpus machine(2);
  const simt::SimulatedNccl nccl;
  for (const Reduce reduce : kReductions) {
    DataParallelOptions options = on_gpus(2, 2);
    options.comm = Comm::nccl;
    options.reduce = reduce;
    options.batch_norm = BatchNormMode::sync;
    options.bucket_bytes = 4000;
    five_steps(rules_model(), options, 5);
    if (reduce == Reduce::sharded) three_steps(residual_net(/*relu=*/true, /*dropout=*/true), options);
  }
  CHECK(nccl.launches(0) == nccl.launches(1));
  CHECK(nccl.communicators() == 8);
}

TEST_CASE("race detector: a pipeline with mixed precision, and device-resident images, are free of races") {
  SimulatedGpus machine(2);
  DataParallelOptions options = on_gpus(2, 2);
  options.amp = Amp::bfloat16;
  const auto images = read_images(RandomImages(tiny().input(), tiny().output()[0], 20));
  {
    DataParallel net(tiny(), options);
    for (std::uint64_t i = 0; i < 3; ++i) {
      Batch batch = random_batch(tiny(), 8, i);
      batch.images = {};
      for (std::int64_t& sample : batch.samples.span<std::int64_t>()) sample %= 20;
      batch.resident = {.set = images, .augment = true, .seed = 7, .epoch = 0};
      net.train_step(batch, Sgd{.lr = 0.05f, .momentum = 0.9f});
    }
    CHECK(net.take_stats().samples == 24);
  }
  options.pipeline = {.stages = 2, .micro_batches = 2};
  three_steps(two_layers(), options);
}

TEST_CASE("race detector: the wrapper's steps, gathered loss, evaluation and accumulation are free of races") {
  const Model model = small_convnet(/*dropout=*/true);
  SimulatedGpus machine(2);
  DataParallelOptions options = on_gpus(2, 2);
  options.loss = LossAt::gathered;
  options.grad_accum_steps = 2;
  five_steps(model, options, 7);
  DataParallel net(model, on_gpus(2, 2));
  for (std::uint64_t i = 0; i < 2; ++i) {
    const Batch batch = random_batch(model, 6, i);
    net.backward(cross_entropy(net.forward(batch.images), batch.labels).grad);
    net.step(Sgd{.lr = 0.1f, .momentum = 0.9f});
    net.evaluate(batch);
  }
  CHECK(net.take_stats().samples == 12);
}
