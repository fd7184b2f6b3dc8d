// The per-layer times of traced steps.
#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>

#include "apps/run_program.h"
#include "support/catch.h"
#include "support/temporary_folder.h"
#include "support/training.h"

using namespace dp;
using namespace dp::test;

namespace {

std::vector<LayerTime> layers_of(DataParallelOptions options, int steps) {
  options.trace_first = 1;
  options.trace_steps = 3;
  const Model model = small_convnet();
  DataParallel net(model, options);
  for (int step = 0; step < steps; ++step) net.train_step(random_batch(model, 8), Sgd{.lr = 0.01f, .momentum = 0.9f});
  return net.layer_times();
}

const LayerTime* named(const std::vector<LayerTime>& layers, const std::string& name) {
  const auto found = std::find_if(layers.begin(), layers.end(), [&](const LayerTime& l) { return l.name == name; });
  return found == layers.end() ? nullptr : &*found;
}

}  // namespace

TEST_CASE("layer times: every step of the plan appears once, in order, with its implementation and its floor") {
  for (const int replicas : {1, 2}) {
    DataParallelOptions options = on_cpus(replicas);
    options.grad_accum_steps = replicas;  // with two micro-batches some layers run twice per step
    const auto layers = layers_of(options, 5);
    std::set<std::string> names;
    for (const LayerTime& layer : layers) CHECK(names.insert(layer.name).second);
    for (const char* name : {"conv1+relu", "conv2 backward_weights", "fc2", "loss", "(update)"}) {
      INFO(name);
      CHECK(named(layers, name) != nullptr);
    }
    CHECK((named(layers, "(reduce)") != nullptr) == (replicas > 1));
    const LayerTime* const conv = named(layers, "conv1+relu");
    REQUIRE(conv != nullptr);
    CHECK(conv < named(layers, "fc2"));
    CHECK(conv->seconds > 0);
    CHECK(conv->floor_seconds > 0);
    CHECK(!conv->implementation.empty());
    CHECK(named(layers, "(update)")->floor_seconds == 0);
  }
}

TEST_CASE("layer times: they are empty without traced steps and an error without tracing") {
  CHECK(layers_of(on_cpus(1), 1).empty());
  DataParallel net(small_convnet(), on_cpus(1));
  CHECK_THROWS_WITH(net.layer_times(), Catch::Contains("set trace_steps"));
  TrainerOptions options;
  options.parallel = on_cpus(1);
  options.profile = true;
  const auto data = datasets::synthetic({1, 28, 28}, 10, 64, 16);
  CHECK_THROWS_WITH(Trainer(models::mlp(), data, options), Catch::Contains("trace_steps"));
}

TEST_CASE("dp_train --profile prints a row for each layer and the total") {
  const TemporaryFolder temp;
  const Outcome outcome = run_dp_train(
      {"--dataset", "synthetic", "--model", "mnist_convnet", "--cpu", "2", "-b", "16", "--max-steps", "5",
       "--threads-per-replica", "1", "--output-dir", "run", "--quiet", "--profile", "--trace-steps", "2:2"},
      temp.path());
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  double sum = 0, all = 0;
  std::size_t rows = 0;
  std::istringstream lines(outcome.out.substr(outcome.out.find("x floor")));
  std::string line;
  std::getline(lines, line);
  while (all == 0 && std::getline(lines, line)) {
    std::istringstream words(line);
    double milliseconds = 0, percent = 0;
    std::string floor, ratio, name;
    REQUIRE(words >> milliseconds >> percent >> floor >> ratio >> name);
    if (name == "all")
      all = milliseconds;
    else
      sum += milliseconds, ++rows;
  }
  CHECK(rows > 10);
  CHECK(all > 0);
  CHECK(std::abs(sum - all) <= 0.0006 * static_cast<double>(rows));  // each time is rounded to 1 us
  CHECK(outcome.out.find("conv2 backward_weights") != std::string::npos);
  CHECK(run_dp_train({"--profile", "--evaluate", "--init", "x"}, temp.path()).code == 2);
  const Outcome early = run_dp_train({"--dataset", "synthetic", "--model", "mlp", "--cpu", "1", "-b", "16",
                                      "--max-steps", "2", "--output-dir", "early", "--profile"},
                                     temp.path());
  CHECK(early.code == 0);
  CHECK((early.out + early.err).find("the profile contains no step: the run ended before step 10") !=
        std::string::npos);
}
