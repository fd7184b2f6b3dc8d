// The times of layers, from spans of known length.
#include <set>

#include "engine/parallel/layer_times.h"
#include "engine/plan/op_work.h"
#include "engine/step/replica.h"
#include "support/catch.h"
#include "support/training.h"

using namespace dp;
using namespace dp::engine;

namespace {

const kernels::Rates kRates{.flops = 1e9, .bytes = 1e9, .source = "test"};

// A network on one device with one training plan.
class Planned {
 public:
  explicit Planned(const Model& model, bool split_backward = false) : model_(model), norms_(model_) {
    auto context = kernels::backend(DeviceKind::reference).open({DeviceKind::reference, 0}, {});
    const PlanOptions options{.batch = 4, .split_backward = split_backward};
    const Plan layouts(model_, *context, options, nullptr, norms_);
    table_ = std::make_unique<ParameterTable>(model_, layouts.parameter_layouts(), context->compute_type());
    replica_ = std::make_unique<Replica>(model_, std::move(context), *table_, norms_, ReplicaOptions{});
    plan_ = &replica_->runner.plan(options);
  }

  const PlanRunner& runner() const { return replica_->runner; }
  const Plan& plan() const { return *plan_; }

 private:
  const Model model_;
  const NormTable norms_;
  std::unique_ptr<ParameterTable> table_;
  std::unique_ptr<Replica> replica_;
  const Plan* plan_ = nullptr;
};

// Adds a span of a step to a ring.
void add(kernels::TraceRing& ring, std::int64_t step, std::uint64_t detail, Phase phase, std::int64_t nanoseconds) {
  ring.recording = true;
  ring.step = step;
  ring.add({.begin = 1000, .end = 1000 + nanoseconds, .detail = detail, .label = static_cast<std::uint8_t>(phase)});
}

void check(const LayerTime& time, const std::string& name, const std::string& implementation, double nanoseconds,
           double floor) {
  INFO(name);
  CHECK(time.name == name);
  CHECK(time.implementation == implementation);
  CHECK(time.seconds == Approx(nanoseconds * 1e-9).epsilon(1e-12));
  CHECK(time.floor_seconds == Approx(floor));
}

}  // namespace

TEST_CASE("layer medians: the time of a layer is the median over the steps of its total in a step") {
  const Planned net(test::small_convnet());
  const std::vector<PlanStep>& forward = net.plan().forward();
  REQUIRE(forward.size() >= 3);
  const auto detail = [&](std::size_t layer) { return layer_detail(forward[layer].name); };
  Tracer tracer(0, 1);
  kernels::TraceRing &compute = tracer.compute, &communication = tracer.communication;
  add(compute, 5, detail(1), Phase::forward, 50);
  add(compute, 5, detail(0), Phase::forward, 8);
  add(compute, 5, 0, Phase::update, 100);
  add(compute, 6, detail(1), Phase::forward, 30);
  add(compute, 6, detail(2), Phase::forward, 9);
  add(compute, 6, 0, Phase::update, 300);
  add(compute, 7, detail(1), Phase::forward, 10);
  add(compute, 7, detail(1), Phase::forward, 30);  // the second micro-batch
  add(compute, 7, detail(0), Phase::forward, 6);
  add(compute, 7, 0, Phase::update, 200);
  add(communication, 5, bucket_detail(0), Phase::reduce, 70);
  add(communication, 6, bucket_detail(0), Phase::reduce, 71);
  add(communication, 7, bucket_detail(0), Phase::reduce, 30);
  add(communication, 7, bucket_detail(1), Phase::reduce, 42);
  add(communication, 7, bucket_detail(0), Phase::broadcast, 5);
  add(communication, 8, bucket_detail(1), static_cast<Phase>(Tracer::kStep), 1000);  // no phase: ignored
  const std::vector<LayerTime> times = layer_times(net.runner(), tracer, kRates);
  REQUIRE(times.size() == 6);
  const auto floor = [&](std::size_t layer) { return floor_of(work_of(forward[layer]), kRates); };
  const auto implementation = [&](std::size_t layer) { return forward[layer].op->implementation(); };
  CHECK(floor(1) > 0);
  check(times[0], forward[1].name, implementation(1), 40, 2 * floor(1));
  check(times[1], forward[0].name, implementation(0), 6, floor(0));  // 0 in the second step
  check(times[2], "(update)", "", 200, 0);
  check(times[3], forward[2].name, implementation(2), 0, floor(2));
  check(times[4], "(reduce)", "", 71, 0);
  check(times[5], "(broadcast)", "", 0, 0);
}

TEST_CASE("layer medians: of two steps the slower one is reported, and without spans nothing is reported") {
  const Planned net(test::small_convnet());
  Tracer tracer(0, 1);
  CHECK(layer_times(net.runner(), tracer, kRates).empty());
  const PlanStep& first = net.plan().forward().front();
  add(tracer.compute, 1, layer_detail(first.name), Phase::forward, 30);
  add(tracer.compute, 2, layer_detail(first.name), Phase::forward, 10);
  const std::vector<LayerTime> times = layer_times(net.runner(), tracer, {});
  REQUIRE(times.size() == 1);
  check(times[0], first.name, first.op->implementation(), 30, 0);  // the rates are unknown
}

TEST_CASE("layer medians: the steps of all passes are found by name") {
  for (const bool split : {false, true}) {
    const Planned net(test::residual_net(), split);
    const Plan& plan = net.plan();
    CHECK(plan.weight_gradients().empty() != split);
    Tracer tracer(0, 1);
    std::set<std::string> names, found;
    for (const auto* pass :
         {&plan.forward(), &plan.running_statistics(), &plan.loss(), &plan.backward(), &plan.weight_gradients()})
      for (const PlanStep& step : *pass) {
        add(tracer.compute, 1, layer_detail(step.name), Phase::forward, 10);
        names.insert(step.name);
      }
    for (const LayerTime& time : layer_times(net.runner(), tracer, kRates)) found.insert(time.name);
    CHECK(found == names);
  }
}
