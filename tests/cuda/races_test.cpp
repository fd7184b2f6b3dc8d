// Training under the race detector of the simulation: within kernels, and between what streams of all devices do.
#include "cuda/engine/narrow_nets.h"
#include "cuda/engine/rules_runs.h"

using namespace dp;
using namespace dp::test;

namespace {

const Model& tiny() {
  static const Model model = models::mnist_convnet({.classes = 10, .width = 2, .input = {1, 10, 10}});
  return model;
}

// More than one block of weights: both replicas have a slice.
const Model& two_layers() {
  static const Model model = models::mlp({.input = {1, 14, 14}, .hidden = {40}});
  return model;
}

// One that runs eagerly, one that is recorded, one that is launched.
void three_steps(const Model& model, const DataParallelOptions& options) {
  DataParallel net(model, options);
  for (std::uint64_t i = 0; i < 3; ++i)
    net.train_step(random_batch(model, 5, i), {.lr = 0.05f, .momentum = 0.9f, .weight_decay = 1e-3f});
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

// Leaves out each wait that replica 0 enqueues in two steps, one at a time: how many there are, and how many are reported.
LeftOut leave_out_each_wait(Reduce reduce, bool for_other_device) {
  SimulatedGpus machine(2);
  simt::simulation().delays = simt::simulation().protect_memory = false;  // time
  DataParallelOptions options = on_gpus(2, 2);
  options.reduce = reduce;
  options.graphs = Graphs::never;
  DataParallel net(two_layers(), options);
  std::uint64_t number = 0;
  const auto train = [&](int steps) {
    for (int i = 0; i < steps; ++i)
      net.train_step(random_batch(two_layers(), 2, number++), {.lr = 0.05f, .momentum = 0.9f});
    net.take_stats();
  };
  train(8);  // until the slots of pinned memory have grown: that waits for the devices
  CHECK(simt::take_reports().empty());
  LeftOut result;
  for (;;) {
    simt::simulation().left_out_wait = {.device = 0, .for_other_device = for_other_device, .number = result.waits + 1};
    train(2);
    const bool none_left = std::exchange(simt::simulation().left_out_wait.number, 0) > 0;
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

// What is left out is the engine's: before every forward the compute stream waits for the weights, before every exchange the
// communication stream for the gradients; before a step's inputs are used they must have come, before they come their slot must be free.
TEST_CASE("race detector: a wait that the engine lacks is found, as the page on the simulated CUDA says") {
  std::string table = "| reduce | the engine's waits | waits within p2p |\n|---|---|---|\n";
  for (const auto& [reduce, name] : {std::pair(Reduce::master, "master"), std::pair(Reduce::all_reduce, "allreduce"),
                                     std::pair(Reduce::sharded, "sharded")}) {
    const LeftOut own = leave_out_each_wait(reduce, false), of_peers = leave_out_each_wait(reduce, true);
    INFO(name);
    CHECK(own ==
          LeftOut{8, 5});  // the first follows a wait of the host, and so do those until a slot of inputs is free
    table += std::string("| ") + name + " | " + to_string(own) + " | " + to_string(of_peers) + " |\n";
  }
  INFO(table);
  CHECK(read_text(DP_SIMT_PAGE).find(table) != std::string::npos);
}

// Left out while a step is recorded, so that its graph lacks an edge, or where it is launched. The waits of replica 0, in order:
// - two buckets with three waits each: for replica 1's gradients, for its slices, and until it has read. The wait until it has read is silent
//   both times: the next bucket's first wait, or the end of the graph, orders the same. The wait for the slices of the second bucket is silent,
//   too: replica 1 has no slice of it;
// - the wait that joins replica 1's stream: without it there is no graph;
// - a wait before each of three launches, for replica 1's uploads. The first is silent: before a recording the host waits for both devices.
TEST_CASE("race detector: an edge that the graph of a step lacks is found") {
  SimulatedGpus machine(2);
  simt::simulation().delays = simt::simulation().protect_memory = false;  // time
  const Model model = narrow_convnet();
  int edges = 0, found = 0, refused = 0;
  for (int number = 1; edges < number; ++number) {
    DataParallelOptions options = on_gpus(2, 2);
    options.reduce = Reduce::all_reduce;
    options.bucket_bytes = 4000;
    DataParallel net(model, options);
    const auto train = [&](int steps) {
      for (int i = 0; i < steps; ++i) net.train_step(random_batch(model, 2), {.lr = 0.05f, .momentum = 0.9f});
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

TEST_CASE("race detector: steps of mnist_convnet, every reduction") {
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

TEST_CASE("race detector: steps of a residual network, statistics synchronised, GPUs that do not see each other") {
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

TEST_CASE("race detector: steps over nccl, two communicators at once") {
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

TEST_CASE("race detector: the seven steps one by one, gathered loss, evaluation, accumulation") {
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
    net.step({.lr = 0.1f, .momentum = 0.9f});
    net.evaluate(batch);
  }
  CHECK(net.take_stats().samples == 12);
}
