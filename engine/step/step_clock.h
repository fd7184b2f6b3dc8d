// What a replica is doing, for error messages, the watchdog and the timeline, and how long each phase takes.
#pragma once

#include <chrono>
#include <utility>

#include "dp/statistics.h"
#include "engine/observe/progress.h"
#include "engine/observe/tracer.h"
#include "engine/step/input_feed.h"
#include "engine/step/open_device.h"

namespace dp::engine {

class StepClock {
 public:
  // `feed`: null if the device reads host memory.
  StepClock(OpenDevice& device, InputFeed* feed);

  // Work enqueued on the compute stream is now timed as this phase.
  void enter(Phase phase);
  // The same for work on a bucket during a phase. The thread's timeline stays in the interrupted phase. Call visit()
  // with that phase afterwards.
  void visit(Phase phase);
  // Work enqueued on the compute stream is now a graph of several phases.
  void enter_graph();
  Phase phase() const { return progress_.phase(); }
  Progress& progress() { return progress_; }
  const Progress& progress() const { return progress_; }
  // The label of a stream's work in this phase, see kernels::Stream::label().
  std::size_t label_of(Phase phase) const { return timing_ ? static_cast<std::size_t>(phase) : kUntimed; }

  // Records the steps and the compute stream's work in `tracer`, which must outlive this object.
  void trace(Tracer& tracer);

  // Call around each training step; `step` is its number. Only work enqueued between the two calls is timed. An
  // asynchronous device may finish it after end(); a later end() then adds its time.
  void begin(std::int64_t step);
  void end();
  PhaseTimes take_times() { return std::exchange(times_, {}); }

 private:
  static constexpr std::size_t kUntimed = kernels::kLabels - 1;  // no phase has this number
  static constexpr std::size_t kGraph = kernels::kLabels - 2;

  void name_phase(const char* name);  // profiler range; null ends it

  OpenDevice& device_;
  InputFeed* const feed_;
  Progress progress_;
  Tracer* tracer_ = nullptr;  // null: no timeline is recorded
  PhaseTimes times_;
  bool timing_ = false, phase_named_ = false;
  std::chrono::steady_clock::time_point began_;
};

}  // namespace dp::engine
