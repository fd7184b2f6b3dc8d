// A ring of trace spans for one stream. Adding a span allocates nothing. The ring keeps the newest spans and counts the
// dropped ones.
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
               end = 0;      // trace_clock() times; waiting for other replicas is included
  std::uint64_t detail = 0;  // see Stream::detail
  std::int64_t bytes = 0;    // transferred between replicas; 0 if unknown
  std::uint8_t label = 0;    // see Stream::label
  std::int64_t step = 0;     // training step of the work
};

// Used by one thread at a time.
class TraceRing {
 public:
  explicit TraceRing(std::size_t capacity) : spans_(capacity) {}

  bool recording = false;
  std::int64_t step = 0;  // training step of the work that is enqueued now
  void add(TraceSpan span) {
    span.step = step;
    if (recording) keep(span);
  }
  // Adds a span even if `recording` is now false: asynchronous streams measure work after recording has ended.
  void keep(const TraceSpan& span) { spans_[added_++ % spans_.size()] = span; }
  void miss() { ++missed_; }  // counts a span that could not be measured
  // Adds to the bytes of the running work's span.
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
