// What a replica did in some of its steps, and when: a timeline.
//
// A span of the replica's own thread is a step or a phase of it; spans of its streams are pieces of work, named by plan step or
// bucket. Nothing is allocated once it is made.
#pragma once

#include <cstdint>
#include <string>

#include "engine/base/phase.h"
#include "kernels/trace_ring.h"

namespace dp::engine {

// What Stream::detail means to the engine: nothing (0), a plan step's name, or a bucket.
inline std::uint64_t layer_detail(const std::string& name) { return reinterpret_cast<std::uintptr_t>(&name); }
constexpr std::uint64_t bucket_detail(std::size_t bucket) { return bucket << 1 | 1; }
inline std::int64_t bucket_of(std::uint64_t detail) {
  return (detail & 1) != 0 ? static_cast<std::int64_t>(detail >> 1) : -1;
}
inline const std::string* layer_of(std::uint64_t detail) {
  return (detail & 1) != 0 ? nullptr : reinterpret_cast<const std::string*>(detail);
}

class Tracer {
 public:
  // Steps are counted from the making of the DataParallel.
  Tracer(std::int64_t first, std::int64_t count) : first_(first), count_(count) {}

  bool records_next() const {
    return seen_ >= first_ && seen_ - first_ < count_;
  }  // whether the next step is one of them
  // Around each training step. `number` is what the step is called.
  void begin_step(std::int64_t number);
  void end_step();
  void enter(Phase phase);  // the thread's: ends the phase before it

  kernels::TraceRing thread{kSpans}, compute{kSpans}, communication{kSpans};
  static constexpr std::uint8_t kStep = 0xff;  // the label of a step's span

 private:
  static constexpr std::size_t kSpans = 1 << 15;
  void end_phase(std::int64_t now);
  void record(bool on) { thread.recording = compute.recording = communication.recording = on; }

  const std::int64_t first_, count_;
  std::int64_t seen_ = 0;
  std::int64_t step_begin_ = 0, phase_begin_ = 0;
  Phase phase_ = Phase::scatter;
};

}  // namespace dp::engine
