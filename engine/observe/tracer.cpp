#include "engine/observe/tracer.h"

namespace dp::engine {

void Tracer::begin_step(std::int64_t number) {
  record(records_next());
  ++seen_;
  thread.step = compute.step = communication.step = number;
  step_begin_ = kernels::trace_clock();
  phase_begin_ = 0;
}

void Tracer::end_phase(std::int64_t now) {
  if (phase_begin_ != 0) thread.add({phase_begin_, now, 0, 0, static_cast<std::uint8_t>(phase_)});
}

void Tracer::enter(Phase phase) {
  if (!thread.recording) return;
  const std::int64_t now = kernels::trace_clock();
  end_phase(now);
  phase_ = phase;
  phase_begin_ = now;
}

void Tracer::end_step() {
  if (!thread.recording) return;
  const std::int64_t now = kernels::trace_clock();
  end_phase(now);
  thread.add({step_begin_, now, 0, 0, kStep});
  record(false);
}

}  // namespace dp::engine
