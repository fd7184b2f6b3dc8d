// Records the spans of traced steps and writes trace files.
#pragma once

#include <cstdint>
#include <string>

#include "engine/observe/progress.h"
#include "kernels/device/trace_ring.h"

namespace dp::engine {

// Timeline of some steps of a replica.
//
// Spans of the replica's thread are steps and their phases. Spans of its streams are pieces of work, named by plan step
// or bucket. Nothing is allocated after construction.

// Encoding of Stream::detail: 0 for nothing, the address of a plan step's name, a bucket with the lowest bit set, or
// the item that is handed over between pipeline stages, with only the second lowest bit set.
inline std::uint64_t layer_detail(const std::string& name) { return reinterpret_cast<std::uintptr_t>(&name); }
constexpr std::uint64_t bucket_detail(std::size_t bucket) { return bucket << 1 | 1; }
inline std::int64_t bucket_of(std::uint64_t detail) {
  return (detail & 1) != 0 ? static_cast<std::int64_t>(detail >> 1) : -1;
}
constexpr std::uint64_t item_detail(int item) { return static_cast<std::uint64_t>(item) << 2 | 2; }
inline int item_of(std::uint64_t detail) { return (detail & 3) == 2 ? static_cast<int>(detail >> 2) : -1; }
inline const std::string* layer_of(std::uint64_t detail) {
  return (detail & 3) != 0 ? nullptr : reinterpret_cast<const std::string*>(detail);
}

class Tracer {
 public:
  // Records `count` steps from step `first` on. Steps are counted from the construction of the DataParallel.
  Tracer(std::int64_t first, std::int64_t count) : first_(first), count_(count) {}

  bool records_next() const {
    return seen_ >= first_ && seen_ - first_ < count_;
  }  // whether the next step will be recorded
  // Call around each training step. `number` is the step's number in the timeline.
  void begin_step(std::int64_t number);
  void end_step();
  void enter(Phase phase);  // begins a phase of the thread and ends the previous one

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

// A replica's timeline as text in Chrome's trace format (docs/guide/tracing.md).

struct TraceText {
  std::string events;        // JSON objects, separated by commas
  std::int64_t steps = 0;    // recorded
  std::int64_t dropped = 0;  // spans that did not fit into a ring or could not be measured
};

// `replica` is the process id and `name` the process name in the file. `zero`: the trace_clock() time of the file's
// origin, in nanoseconds.
TraceText trace_text(const Tracer& tracer, int replica, const std::string& name, std::int64_t zero);
// Begin of the earliest span in trace_clock() time; the largest std::int64_t if there are no spans.
std::int64_t first_moment(const Tracer& tracer);

}  // namespace dp::engine
