// Kinds of steps as graphs: which kinds have a graph, how they are described, and why steps run eagerly.
#include "cuda/engine/graph_runs.h"
#include "cuda/simulated_gpus.h"
#include "support/catch.h"

using namespace dp;
using namespace dp::test;

namespace {

constexpr Sgd kSgd{.lr = 0.05f, .momentum = 0.9f};

struct Described {
  std::string head;        // up to the first kind
  std::vector<int> rows;   // of each kind with a graph
  std::vector<int> nodes;  // of its graphs
};

// Reads "steps run as one graph for each replica; 9 rows: 40 nodes, 5 rows: 40 nodes".
Described described(const DataParallel& net) {
  const std::string text = net.describe_steps();
  Described all;
  std::size_t at = text.find("; ");
  all.head = text.substr(0, at);
  while (at != std::string::npos) {
    const std::size_t colon = text.find(" rows: ", at);
    REQUIRE(colon != std::string::npos);
    all.rows.push_back(std::stoi(text.substr(at + 2)));
    all.nodes.push_back(std::stoi(text.substr(colon + std::strlen(" rows: "))));
    at = text.find(", ", colon);
  }
  return all;
}

}  // namespace

TEST_CASE("simulated GPUs: at most eight kinds of steps have graphs, and a new one replaces the least recently used") {
  SimulatedGpus machine(1);
  simt::simulation().delays = simt::simulation().protect_memory = false;  // faster
  const Model model = narrow_convnet();
  DataParallelOptions options = on_gpus(1, 1);
  DataParallel net(model, options);
  options.graphs = Graphs::never;
  DataParallel eager(model, options);
  std::uint64_t number = 0;
  const auto step = [&](std::int64_t rows) {
    ++number;
    for (DataParallel* const one : {&net, &eager}) one->train_step(random_batch(model, rows, number), kSgd);
  };
  for (std::int64_t rows = 9; rows >= 1; --rows) step(rows);  // allocates all memory
  CHECK(net.describe_steps() == "steps run as one graph for each replica, from the second of a kind on");
  for (std::int64_t rows = 9; rows >= 1; --rows) step(rows), step(rows);
  CHECK(described(net).head == "steps run as one graph for each replica");
  CHECK(described(net).rows == std::vector{8, 7, 6, 5, 4, 3, 2, 1});
  step(8);  // is the most recently used now
  CHECK(described(net).rows == std::vector{7, 6, 5, 4, 3, 2, 1, 8});
  step(9), step(9);
  CHECK(described(net).rows == std::vector{6, 5, 4, 3, 2, 1, 8, 9});
  CHECK(bit_equal(net.weights(), eager.weights()));
}

TEST_CASE("simulated GPUs: a kind of step is described with the nodes of all its micro-batches") {
  SimulatedGpus machine(1);
  simt::simulation().delays = simt::simulation().protect_memory = false;  // faster
  const Model model = narrow_convnet();
  const auto nodes = [&](int micro_batches) {
    DataParallelOptions options = on_gpus(1, 1);
    options.grad_accum_steps = micro_batches;
    DataParallel net(model, options);
    for (int step = 0; step < 2; ++step) net.train_step(random_batch(model, 4 * micro_batches), kSgd);
    const Described steps = described(net);
    REQUIRE(steps.rows == std::vector{4 * micro_batches});
    return steps.nodes.front();
  };
  const int one = nodes(1), two = nodes(2), three = nodes(3);
  CHECK(one > 10);
  CHECK(two > one + one / 2);
  CHECK(three - two > one / 2);
}

TEST_CASE("simulated GPUs: the reason for or against graphs is reported") {
  const Model model = narrow_convnet();
  for (const int gpus : {1, 2}) {
    INFO(gpus << " GPUs");
    SimulatedGpus machine(gpus);
    DataParallelOptions options = on_gpus(gpus, gpus);
    const DataParallel net(model, options);
    CHECK(net.graphs_choice().what == (gpus == 1 ? "one per replica" : "one of all replicas"));
    CHECK(net.graphs_choice().reason == (gpus == 1 ? "this process drives one replica"
                                                   : "events order the replicas' streams, which one graph can hold"));
    options.graphs = Graphs::never;
    const DataParallel eager(model, options);
    CHECK(eager.graphs_choice().what == "none");
    CHECK(eager.graphs_choice().reason == "set by the caller (--graphs never)");
  }
  DataParallelOptions required = on_cpus(1);
  required.graphs = Graphs::always;
  CHECK_THROWS_WITH(DataParallel(model, required), "--graphs always is not possible: only GPUs have CUDA graphs");
}
