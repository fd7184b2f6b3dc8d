#include "engine/step/step_clock.h"

#include <algorithm>
#include <numeric>

namespace dp::engine {

StepClock::StepClock(OpenDevice& device, InputFeed* feed) : device_(device), feed_(feed) {
  device.compute().label(kUntimed);
  if (feed != nullptr) feed->label(kUntimed);
}

void StepClock::enter(Phase phase) {
  visit(phase);
  if (timing_) name_phase(to_string(phase));
  if (tracer_ != nullptr) tracer_->enter(phase);
}

void StepClock::visit(Phase phase) {
  progress_.enter(phase);
  device_.compute().label(label_of(phase));
  device_.compute().detail(0);
  if (feed_ != nullptr) feed_->label(label_of(Phase::scatter));
}

void StepClock::enter_graph() {
  enter(Phase::forward);
  if (timing_) device_.compute().label(kGraph);
}

void StepClock::trace(Tracer& tracer) {
  tracer_ = &tracer;
  device_.compute().trace(&tracer.compute);
}

void StepClock::name_phase(const char* name) {
  if (phase_named_) device_.context().end_range();
  phase_named_ = name != nullptr;
  if (name != nullptr) device_.context().begin_range(name);
}

void StepClock::begin(std::int64_t step) {
  device_.context().begin_range("step");
  progress_.begin_step(step);
  if (tracer_ != nullptr) tracer_->begin_step(step);
  device_.compute().detail(0);
  began_ = std::chrono::steady_clock::now();
  timing_ = true;
}

void StepClock::end() {
  timing_ = false;
  name_phase(nullptr);
  device_.context().end_range();
  device_.compute().label(kUntimed);
  if (feed_ != nullptr) feed_->label(kUntimed);
  if (tracer_ != nullptr) tracer_->end_step();
  kernels::LabelSeconds work = device_.context().take_seconds();
  work[kUntimed] = 0;
  const auto of = [&](Phase phase) { return work[static_cast<std::size_t>(phase)]; };
  times_.scatter += of(Phase::scatter);
  times_.forward += of(Phase::forward) + of(Phase::loss);
  times_.backward += of(Phase::backward);
  times_.reduce += of(Phase::reduce);
  times_.update += of(Phase::update);
  times_.broadcast += of(Phase::broadcast);
  times_.graph += work[kGraph];
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - began_;
  times_.waiting += std::max(0.0, passed.count() - std::accumulate(work.begin(), work.end(), 0.0));
}

}  // namespace dp::engine
