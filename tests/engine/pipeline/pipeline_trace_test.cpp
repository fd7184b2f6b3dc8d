// Timelines, layer times and phase times of a pipeline.
#include <algorithm>
#include <set>

#include "engine/pipeline/pipelined.h"
#include "observe/timeline.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

using namespace dp;
using namespace dp::test;

namespace {

DataParallelOptions traced() {
  DataParallelOptions options = pipelined(on_cpus(1), {2, 2, 2}, one_f_one_b);
  options.pipeline.cuts = {"fc1"};
  options.trace_first = 1;
  options.trace_steps = 2;
  return options;
}

void train(DataParallel& net, int steps) {
  for (int step = 0; step < steps; ++step) net.train_step(random_batch(net.model(), 8), Sgd{.lr = 0.01f});
}

}  // namespace

TEST_CASE("pipeline: a timeline has the steps of every stage of every replica, by name") {
  const TemporaryFolder folder;
  DataParallel net(small_convnet(), traced());
  train(net, 4);
  CHECK(net.write_trace(folder / "trace.json") == 2);
  const Timeline timeline = read_timeline(read_text(folder / "trace.json"));
  CHECK(timeline.steps == 2);
  CHECK(timeline.dropped == 0);
  CHECK(timeline.processes == std::map<int, std::string>{{0, "replica 0 stage 0 (cpu)"},
                                                         {1, "replica 0 stage 1 (cpu)"},
                                                         {2, "replica 1 stage 0 (cpu)"},
                                                         {3, "replica 1 stage 1 (cpu)"}});
  for (int process = 0; process < 4; ++process) {
    INFO("process " << process);
    std::multiset<std::int64_t> steps;
    for (const Span& span : timeline.phases(process, "step")) steps.insert(span.step);
    CHECK(steps == std::multiset<std::int64_t>{1, 2});
    CHECK_FALSE(timeline.of(process, "forward").empty());
    CHECK_FALSE(timeline.of(process, "backward").empty());
    CHECK(timeline.of(process, "loss").empty() == (process % 2 == 0));  // the last stage computes it
  }
}

TEST_CASE("pipeline: layer times are those of all stages in their order") {
  DataParallel net(small_convnet(), traced());
  CHECK(net.layer_times().empty());
  train(net, 4);
  const std::vector<LayerTime> times = net.layer_times();
  const auto place_of = [&](const std::string& name) {
    return std::ranges::find(times, name, &LayerTime::name) - times.begin();
  };
  const auto count_of = [&](const std::string& name) { return std::ranges::count(times, name, &LayerTime::name); };
  for (const char* const name : {"conv1+relu", "fc2", "loss", "fc2 backward_data", "conv1+relu backward_weights"}) {
    INFO(name);
    CHECK(count_of(name) == 1);
  }
  CHECK(place_of("conv1+relu") < place_of("conv1+relu backward_weights"));
  CHECK(place_of("conv1+relu backward_weights") < place_of("fc2"));  // of the second stage
  CHECK(place_of("fc2") < place_of("loss"));
}

TEST_CASE("pipeline: every stage of every replica has its phase times") {
  DataParallelOptions options = traced();
  DataParallel net(small_convnet(), options);
  train(net, 2);
  net.take_stats();
  const std::vector<PhaseTimes> times = net.take_phase_times();
  REQUIRE(times.size() == 4);
  for (const PhaseTimes& of_stage : times) {
    CHECK(of_stage.forward > 0);
    CHECK(of_stage.backward > 0);
    CHECK(of_stage.graph == 0);
  }
  CHECK(times[0].update > 0);
  CHECK(times[1].update > 0);
}
