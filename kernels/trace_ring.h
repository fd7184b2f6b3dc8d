// Where a stream notes what it did and when, without allocating: the newest spans, and how many older ones were dropped.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace dp::kernels {

// Nanoseconds of CLOCK_MONOTONIC: one clock for all processes of a host.
inline std::int64_t trace_clock() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct TraceSpan {
  std::int64_t begin = 0,
               end = 0;      // of trace_clock(); from when the work could have run, if nobody had to be waited for
  std::uint64_t detail = 0;  // as Stream::detail says
  std::int64_t bytes = 0;    // that crossed between replicas; 0 when not known
  std::uint8_t label = 0;    // as Stream::label says
  std::int64_t step = 0;     // that the work belongs to
};

// Used by one thread at a time.
class TraceRing {
 public:
  explicit TraceRing(std::size_t capacity) : spans_(capacity) {}

  bool recording = false;
  std::int64_t step = 0;  // what is enqueued now belongs to
  void add(TraceSpan span) {
    span.step = step;
    if (recording) keep(span);
  }
  // For streams that learn later what they did while it was recording.
  void keep(const TraceSpan& span) { spans_[added_++ % spans_.size()] = span; }
  void miss() { ++missed_; }  // a span that could not be measured
  // Counted to the span of the work that is running.
  void count_bytes(std::int64_t bytes) { bytes_ += bytes; }
  std::int64_t take_bytes() {
    const std::int64_t bytes = bytes_;
    bytes_ = 0;
    return bytes;
  }

  std::size_t size() const { return added_ < spans_.size() ? added_ : spans_.size(); }
  std::size_t dropped() const { return added_ - size() + missed_; }
  const TraceSpan& span(std::size_t i) const { return spans_[(added_ - size() + i) % spans_.size()]; }  // oldest first

 private:
  std::vector<TraceSpan> spans_;
  std::size_t added_ = 0, missed_ = 0;
  std::int64_t bytes_ = 0;
};

}  // namespace dp::kernels
