// The ranks of a process group agree on graphs: what makes all of them run eagerly, and which steps are rejected.
#include <functional>

#include "cuda/comm/nccl_runs.h"
#include "dp/error.h"
#include "process_group/group_ranks.h"

using namespace dp;
using namespace dp::test;

namespace {

constexpr Sgd kSgd{.lr = 0.05f, .momentum = 0.9f};
constexpr const char* kEqual = "with CUDA graphs, equal global batches need equal local batches; use --graphs never";

DataParallelOptions of_rank(const std::shared_ptr<ProcessGroup>& group) {
  DataParallelOptions options = with_nccl(1, Reduce::all_reduce);
  options.devices = gpus({group->rank()});
  options.process_group = group;
  options.graphs = Graphs::automatic;
  return options;
}

// A part of a global batch of eight samples.
Batch part_of_eight(const Model& model, std::int64_t rows, std::uint64_t seed) {
  Batch batch = random_batch(model, rows, seed);
  batch.global = 8;
  return batch;
}

// Returns the error's text. Only for errors that do not end the process group.
std::string refusal_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.code() == ErrorCode::usage ? error.what() : "another code";
  }
  return "accepted";
}

}  // namespace

TEST_CASE("nccl: with graphs the local batch size and the memory of a rank must not change") {
  const Model model = narrow_convnet();
  for (const bool allocates : {false, true}) {
    SimulatedGpus machine(2);
    simt::simulation().delays = simt::simulation().protect_memory = false;  // faster
    const simt::SimulatedNccl nccl;
    all_ranks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
      DataParallel net(model, of_rank(group));
      for (std::uint64_t step = 0; step < 3; ++step) net.train_step(part_of_eight(model, 4, step), kSgd);
      DP_HOLDS(net.describe_steps().find("; 4 rows: ") != std::string::npos);
      if (allocates) net.store_logits(1, 100);
      const std::int64_t rows = allocates ? 4 : 5 - 2 * group->rank();
      const std::string text = refusal_of([&] { net.train_step(part_of_eight(model, rows, 9), kSgd); });
      const std::string expected = allocates ? "this rank has allocated memory since an earlier global batch of 8; "
                                             : "this rank has " + std::to_string(rows) +
                                                   " rows of a global batch of 8, but had a different number before; ";
      DP_HOLDS(text == expected + kEqual);
      group->exchange("");  // no rank leaves before the other one has checked
    });
  }
}

TEST_CASE("nccl: if a rank disables graphs or traces other steps, all ranks run eagerly") {
  const Model model = narrow_convnet();
  const std::string other = "steps run eagerly: a rank disables graphs, or traces other steps";
  const auto steps_of = [&](const std::function<void(DataParallelOptions&)>& change) {
    SimulatedGpus machine(2);
    const simt::SimulatedNccl nccl;
    std::vector<std::string> steps(2);
    all_ranks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
      DataParallelOptions options = of_rank(group);
      if (!group->leads()) change(options);
      const DataParallel net(model, options);
      steps[static_cast<std::size_t>(group->rank())] = net.describe_steps();
      group->exchange("");
    });
    return steps;
  };
  using Steps = std::vector<std::string>;
  const std::string graphs = "steps run as one graph for each replica, from the second of a kind on";
  CHECK(steps_of([](DataParallelOptions&) {}) == Steps{graphs, graphs});
  CHECK(steps_of([](DataParallelOptions& o) { o.graphs = Graphs::never; }) ==
        Steps{other, "steps run eagerly: set by the caller (--graphs never)"});
  CHECK(steps_of([](DataParallelOptions& o) { o.trace_steps = 1; }) == Steps{other, other});
  CHECK(steps_of([](DataParallelOptions& o) { o.trace_first = 1; }) == Steps{other, other});
}

TEST_CASE("nccl: --graphs always on one rank requires graphs on all ranks") {
  const Model model = narrow_convnet();
  SimulatedGpus machine(2);
  const simt::SimulatedNccl nccl;
  std::vector<std::string> texts(2);
  all_ranks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    DataParallelOptions options = of_rank(group);
    options.graphs = group->leads() ? Graphs::never : Graphs::always;
    texts[static_cast<std::size_t>(group->rank())] = refusal_of([&] { DataParallel(model, options); });
    group->exchange("");
  });
  CHECK(texts[0] == "--graphs always is not possible: set by the caller (--graphs never)");
  CHECK(texts[1] == "--graphs always is not possible: a rank disables graphs, or traces other steps");
}
