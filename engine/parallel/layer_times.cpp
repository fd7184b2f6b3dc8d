#include "engine/parallel/layer_times.h"

#include <algorithm>
#include <map>
#include <set>

#include "engine/plan/op_work.h"

namespace dp::engine {
namespace {

// Total of all spans with one name in one step.
struct Sum {
  double seconds = 0, floor = 0;
};

class Collector {
 public:
  Collector(const PlanRunner& runner, const kernels::Rates& rates) : rates_(rates) {
    for (const auto& plan : runner.plans())
      for (const auto* pass :
           {&plan->forward(), &plan->running_statistics(), &plan->loss(), &plan->backward(), &plan->weight_gradients()})
        for (const PlanStep& step : *pass) steps_[layer_detail(step.name)] = &step;
  }

  void add(const kernels::TraceRing& ring) {
    for (std::size_t i = 0; i < ring.size(); ++i) add(ring.span(i));
  }

  std::vector<LayerTime> take() {
    std::vector<LayerTime> times;
    for (const std::string& name : order_) {
      std::vector<double> seconds;
      double floor = 0;
      for (const auto& [step, sum] : sums_[name]) seconds.push_back(sum.seconds), floor = sum.floor;
      seconds.resize(seen_.size(), 0);  // 0 s in steps without this name
      const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
      std::nth_element(seconds.begin(), middle, seconds.end());
      times.push_back({name, implementations_[name], *middle, floor});
    }
    return times;
  }

 private:
  void add(const kernels::TraceSpan& span) {
    if (span.label > static_cast<std::uint8_t>(Phase::broadcast)) return;
    const auto step = steps_.find(span.detail);
    const bool layer = step != steps_.end();
    const std::string name =
        layer ? step->second->name : "(" + std::string(to_string(static_cast<Phase>(span.label))) + ")";
    if (!sums_.contains(name)) order_.push_back(name);
    if (layer) implementations_[name] = step->second->op->implementation();
    seen_.insert(span.step);
    Sum& sum = sums_[name][span.step];
    sum.seconds += static_cast<double>(span.end - span.begin) * 1e-9;
    if (layer) sum.floor += floor_of(work_of(*step->second), rates_);
  }

  const kernels::Rates rates_;
  std::map<std::uint64_t, const PlanStep*> steps_;
  std::map<std::string, std::map<std::int64_t, Sum>> sums_;  // by name and step
  std::map<std::string, std::string> implementations_;
  std::vector<std::string> order_;
  std::set<std::int64_t> seen_;
};

}  // namespace

std::vector<LayerTime> layer_times(const PlanRunner& runner, const Tracer& tracer, const kernels::Rates& rates) {
  Collector collector(runner, rates);
  collector.add(tracer.compute);
  collector.add(tracer.communication);
  return collector.take();
}

}  // namespace dp::engine
