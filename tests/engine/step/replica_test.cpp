// A replica on its own: its plans, memory, results, phases, and errors.
#include "engine/step/replica.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "engine/step/logits_store.h"
#include "engine/step/single_replica.h"
#include "support/catch.h"

using namespace dp;
using namespace dp::engine;
using namespace dp::test;

namespace {

std::vector<std::size_t> numbers(const MemoryUse& use) {
  return {use.weights, use.gradients,   use.optimizer, use.statistics,
          use.average, use.activations, use.workspace, use.other};
}

std::size_t to_64_bytes(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

// scatter, forward, backward, reduce, update, broadcast, graph
std::vector<double> numbers(const PhaseTimes& times) {
  return {times.scatter, times.forward, times.backward, times.reduce, times.update, times.broadcast, times.graph};
}

}  // namespace

TEST_CASE("replica: it makes one plan for each set of options that changes the steps") {
  Single replica({});
  const PlanOptions training{.batch = 4}, evaluation{.batch = 4, .training = false};
  std::vector<PlanOptions> all{training, evaluation};
  const auto vary = [&](PlanOptions options, auto change) {
    change(options);
    all.push_back(options);
  };
  vary(training, [](PlanOptions& o) { o.batch = 3; });
  vary(training, [](PlanOptions& o) { o.accumulate = true; });
  vary(training, [](PlanOptions& o) { o.dropout = false; });
  vary(training, [](PlanOptions& o) { o.norm = BatchNormMode::pooled; });
  vary(training, [](PlanOptions& o) { o.joins_loss = true; });
  vary(evaluation, [](PlanOptions& o) { o.folds_norms = true; });
  std::vector<const Plan*> plans;
  for (const PlanOptions& options : all) {
    CHECK(replica->runner.find_plan(options) == nullptr);
    const std::uint64_t before = replica->clock.progress().count();
    const Plan* const made = &replica->runner.plan_without_memory(options);
    CHECK(replica->clock.progress().count() == before + 2);  // planning is progress, at its beginning and at its end
    CHECK(std::ranges::find(plans, made) == plans.end());
    CHECK(made->options().batch == options.batch);
    plans.push_back(made);
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    CHECK(replica->runner.find_plan(all[i]) == plans[i]);
    CHECK(&replica->runner.plan(all[i]) == plans[i]);
  }
  CHECK(replica->runner.plans().size() == all.size());
}

TEST_CASE("replica: the constructor allocates the bytes of sizes(), for any shards and options") {
  for (const bool scales : {false, true})
    for (const int shards : {1, 2}) {
      const ReplicaOptions options{.local_shards = shards, .shards = 3 * shards, .scales_loss = scales};
      kernels::ContextOptions device;
      if (scales) device.activations = DType::f16;
      Single replica(options, device);
      const auto n = static_cast<std::size_t>(shards);
      const std::size_t values = 8 * static_cast<std::size_t>(replica.table().size());
      const Arenas::Sizes& sizes = replica.sizes();
      CHECK(sizes.values == values);
      CHECK(sizes.low_values == (scales ? values : 0));  // the reference device stores float16 as float64
      CHECK(sizes.gradients == n * values);
      CHECK(sizes.running_statistics == 2 * 16 * 8);
      CHECK(sizes.moments == 3 * n * (7 + 6) * 8);
      CHECK(sizes.inputs == sizeof(kernels::StepInputs));
      CHECK(sizes.results == n * sizeof(kernels::StepResults));
      CHECK(sizes.scaler == (scales ? sizeof(kernels::LossScaler) : 0));
      const std::vector<std::size_t> expected{sizes.values + sizes.low_values,
                                              sizes.gradients,
                                              0,
                                              sizes.running_statistics + sizes.moments,
                                              0,
                                              0,
                                              0,
                                              sizes.inputs + sizes.results + sizes.scaler};
      CHECK(numbers(sizes.use()) == expected);
      CHECK(numbers(replica->device.memory_use()) == expected);
      CHECK(replica->device.allocations() == (scales ? 8 : 6));
      CHECK((replica->arenas.scaler() != nullptr) == scales);
    }
}

TEST_CASE("replica: one arena serves all plans and grows with the largest") {
  Single replica({.lanes = 2});
  const std::uint64_t before = replica->device.allocations();
  const auto check = [&](const Plan& largest, std::uint64_t allocations) {
    const MemoryUse& use = replica->device.memory_use();
    CHECK(use.activations + use.workspace == 2 * to_64_bytes(largest.arena_bytes() + largest.workspace_bytes()));
    CHECK(use.workspace == 2 * largest.workspace_bytes());
    CHECK(replica->runner.activation_arena()->bytes() == use.activations + use.workspace);
    CHECK(replica->device.allocations() == before + allocations);
  };
  const Plan& small = replica->runner.plan({.batch = 2});
  check(small, 1);
  replica->runner.plan({.batch = 2});
  check(small, 1);
  const Plan& large = replica->runner.plan({.batch = 9});
  check(large, 2);
  replica->runner.plan({.batch = 3});
  check(large, 2);

  const std::size_t weights = replica->device.memory_use().weights;
  const PlanOptions folding{.batch = 1, .training = false, .folds_norms = true};
  const Plan& folds = replica->runner.plan_without_memory(folding);
  CHECK(folds.folded_bytes() > 0);
  CHECK(replica->runner.missing_folded_bytes(folds) == folds.folded_bytes());
  CHECK(replica->runner.missing_folded_bytes(small) == 0);
  replica->runner.plan(folding);
  CHECK(replica->runner.missing_folded_bytes(folds) == 0);
  CHECK(replica->device.memory_use().weights == weights + folds.folded_bytes());
  check(large, 3);
}

TEST_CASE("replica: an arena grows for activations and for saved inputs") {
  const ReplicaOptions options{.lanes = 2, .saved_inputs = 3}, none{.lanes = 3};
  ActivationArenaSize size;
  CHECK(size.total(options) == 0);
  CHECK(size.grow(128, 10, 65, options));
  CHECK(size.lane == 128);
  CHECK(size.workspace == 20);
  CHECK(size.saved_input == 128);
  CHECK(size.total(options) == 2 * 128 + 3 * 128);
  CHECK_FALSE(size.grow(128, 90, 128, options));
  CHECK(size.workspace == 20);  // that of the plan with the largest lane
  CHECK(size.grow(64, 90, 129, options));
  CHECK(size.lane == 128);
  CHECK(size.workspace == 20);
  CHECK(size.saved_input == 192);
  CHECK(size.grow(192, 5, 0, options));
  CHECK(size.workspace == 10);
  CHECK(size.saved_input == 192);
  ActivationArenaSize other;
  CHECK(other.grow(64, 1, 1000, none));
  CHECK(other.saved_input == 0);
  CHECK(other.workspace == 3);
  CHECK(other.total(none) == 192);
  CHECK_FALSE(other.grow(64, 1, 2000, none));
}

TEST_CASE("replica: results of each shard are taken once, and begin with the neutral clip factor") {
  Single replica({.local_shards = 2, .shards = 2});
  const auto check_empty = [&] {
    for (const kernels::StepResults& result : replica->arenas.take_results()) {
      CHECK(result.samples == 0);
      CHECK(result.loss_sum == 0);
      CHECK(result.clip == 1);
    }
  };
  check_empty();
  for (int shard = 0; shard < 2; ++shard) {
    replica->arenas.step_results()[shard].samples = 3 + shard;
    replica->arenas.step_results()[shard].loss_sum = 0.5 + shard;
    replica->arenas.step_results()[shard].clip = 0.25f;
  }
  const std::vector<kernels::StepResults> taken = replica->arenas.take_results();
  REQUIRE(taken.size() == 2);
  CHECK(taken[0].samples == 3);
  CHECK(taken[1].samples == 4);
  CHECK(taken[1].loss_sum == 1.5);
  CHECK(taken[0].clip == 0.25f);
  check_empty();
}

TEST_CASE("replica: the state of the loss scale is stored and read") {
  Single replica({.scales_loss = true});
  CHECK(replica->arenas.read_scaler().scale == 1);
  CHECK(replica->arenas.read_scaler().last_scale == 1);
  CHECK(replica->arenas.read_scaler().good_steps == 0);
  replica->arenas.set_scaler({.scale = 8, .last_scale = 16, .good_steps = 7});
  CHECK(replica->arenas.read_scaler().scale == 8);
  CHECK(replica->arenas.read_scaler().last_scale == 16);
  CHECK(replica->arenas.read_scaler().good_steps == 7);
  CHECK(replica->arenas.scaler()->scale == 8);
}

TEST_CASE("replica: gradients of one shard are zeroed, and a statistic of one shard") {
  Single replica({.rank = 1, .local_shards = 2, .shards = 4});
  const std::size_t bytes = replica.table().bytes();
  for (const int shard : {0, 1}) {
    std::memset(replica->arenas.gradients(), 0xff, 2 * bytes);
    replica->arenas.zero_gradients(shard);
    for (std::size_t i = 0; i < 2 * bytes; ++i)
      REQUIRE(std::to_integer<int>(replica->arenas.gradients()[i]) ==
              (static_cast<int>(i / bytes) == shard ? 0 : 0xff));
  }
  // Moments (7 doubles) and sums (6) of four shards. This replica has the shards 2 and 3.
  std::byte* const moments = replica->arenas.moments();
  const Norm& norm = replica.norms().norm(0);
  for (const AllGather& all_gather :
       {forward_all_gathers(replica.norms(), 4)[0], AllGather{4 * norm.sums, norm.sums_bytes()}})
    for (const int shard : {0, 1}) {
      std::memset(moments, 0xff, replica.sizes().moments);
      replica->arenas.zero_statistic(all_gather, shard);
      const std::size_t begin = all_gather.offset + all_gather.shard_bytes * static_cast<std::size_t>(2 + shard);
      for (std::size_t i = 0; i < replica.sizes().moments; ++i) {
        const bool zeroed = i >= begin && i < begin + all_gather.shard_bytes;
        REQUIRE(std::to_integer<int>(moments[i]) == (zeroed ? 0 : 0xff));
      }
    }
}

TEST_CASE("replica: a failing step is named, and keeps its code and the other errors") {
  Single replica({});
  const std::vector<PlanStep> steps =
      step_of([] { throw Error(ErrorCode::nonfinite, "no number", {"replica 1 too"}); });
  try {
    replica->runner.run(0, steps);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(std::string(error.what()) == "layer op: no number");
    CHECK(error.code() == ErrorCode::nonfinite);
    CHECK(error.others() == std::vector<std::string>{"replica 1 too"});
  }
  CHECK(replica->clock.progress().layer() == &steps.front().name);
}

TEST_CASE("replica: a pass runs segment by segment, up to the next step that ends one") {
  Single replica({.local_shards = 2, .shards = 2});
  std::vector<PlanStep> steps;
  std::vector<int> ran;
  for (int i = 0; i < 4; ++i) {
    steps.push_back(std::move(step_of([&ran, i] { ran.push_back(i); }).front()));
    steps.back().ends_segment = i == 1;
  }
  int followed = 0;
  const auto segment = [&](int item, bool first) {
    ran.clear();
    replica->runner.run_segment(item, steps, first, [&](const PlanStep&) { ++followed; });
    return ran;
  };
  CHECK(segment(0, true) == std::vector<int>{0, 1});
  CHECK(segment(1, true) == std::vector<int>{0, 1});
  CHECK(segment(0, false) == std::vector<int>{2, 3});
  CHECK(segment(0, false).empty());
  CHECK(segment(1, false) == std::vector<int>{2, 3});
  CHECK(segment(1, true) == std::vector<int>{0, 1});
  CHECK(followed == 10);
}

TEST_CASE("replica: the time of a timed step is added to its phase only") {
  const auto nap = step_of([] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); });
  struct Row {
    Phase phase;
    std::size_t place;  // in numbers(); 6: a graph
  };
  Single replica({});
  const std::vector<Row> rows{{Phase::scatter, 0}, {Phase::forward, 1}, {Phase::loss, 1},      {Phase::backward, 2},
                              {Phase::reduce, 3},  {Phase::update, 4},  {Phase::broadcast, 5}, {Phase::forward, 6}};
  for (const Row& row : rows) {
    INFO(to_string(row.phase));
    replica->clock.enter(row.phase);
    replica->runner.run(0, nap);  // not timed
    const auto begin = std::chrono::steady_clock::now();
    for (int step = 0; step < 2; ++step) {
      replica->clock.begin(step);
      if (row.place == 6)
        replica->clock.enter_graph();
      else
        replica->clock.enter(row.phase);
      CHECK(replica->clock.phase() == row.phase);
      replica->runner.run(0, nap);
      replica->clock.end();
      replica->runner.run(0, nap);  // not timed
    }
    const double passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const PhaseTimes times = replica->clock.take_times();
    const std::vector<double> found = numbers(times);
    for (std::size_t i = 0; i < found.size(); ++i)
      if (i == row.place)
        CHECK(found[i] >= 0.004);
      else
        CHECK(found[i] == 0);
    CHECK(times.waiting >= 0);
    CHECK(found[row.place] + times.waiting <= passed - 0.004);
    CHECK(numbers(replica->clock.take_times()) == std::vector<double>(7, 0.0));
  }
  replica->clock.begin(9);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  replica->clock.end();
  CHECK(replica->clock.take_times().waiting >= 0.002);
}

TEST_CASE("replica: buffers that are freed no longer count") {
  Single replica({});
  const std::vector<std::size_t> before = numbers(replica->device.memory_use());
  const std::uint64_t allocations = replica->device.allocations();
  {
    LogitsStore store(*replica, 3, 40, sizeof(std::int32_t));
    CHECK(replica->device.memory_use().other == before[7] + 120);
    CHECK(replica->device.allocations() == allocations + 1);
  }
  { LogitsStore empty(*replica, 0, 40, sizeof(std::int32_t)); }
  CHECK(numbers(replica->device.memory_use()) == before);
  replica->device.add_bytes(100, &MemoryUse::average);
  CHECK(replica->device.memory_use().average == 100);
  CHECK(replica->device.allocations() == allocations + 3);
  replica->device.subtract_bytes(100, &MemoryUse::average);
  CHECK(numbers(replica->device.memory_use()) == before);
}
