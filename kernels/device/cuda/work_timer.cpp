#include "kernels/device/cuda/work_timer.h"

#include <limits>
#include <utility>

#include "kernels/device/cuda/check.h"

namespace dp::kernels::cuda {
namespace {

float milliseconds_between(const EventHandle& begin, const EventHandle& end) {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()), "measuring work");
  return milliseconds;
}

}  // namespace

void WorkTimer::trace(TraceRing* ring) {
  if (std::exchange(ring_, ring) == ring) return;
  compared_ = EventHandle();
  marks_ = std::vector<Mark>(ring != nullptr ? kRecordedMarks : kMarks);
  written_ = read_ = 0;
  open_ = kNothing;
  open_is_recorded_ = false;
}

// Relates the device clock to the host clock: records an event between two host readings. Keeps the tightest of five
// rounds.
void WorkTimer::compare_clocks(cudaStream_t stream) {
  std::int64_t narrowest = std::numeric_limits<std::int64_t>::max();
  for (int round = 0; round < 5; ++round) {
    EventHandle event = make_timed_event_handle();
    const std::int64_t before = trace_clock();
    check(cudaEventRecord(event.get(), stream), "recording an event");
    check(cudaEventSynchronize(event.get()), "the work before an event");
    const std::int64_t after = trace_clock();
    if (after - before >= narrowest) continue;
    narrowest = after - before;
    compared_ = std::move(event);
    compared_at_ = before + narrowest / 2;
  }
}

void WorkTimer::mark(std::size_t label, cudaStream_t stream) {
  const bool recorded = recording() && label != kNothing;
  if (recorded && !compared_) compare_clocks(stream);
  // A begin mark also needs room for its end mark.
  if (marks_.size() - (written_ - read_) < 2) read_reached();
  if (marks_.size() - (written_ - read_) < 2) {
    if (recorded) ring_->miss();
    if (open_ == kNothing) return;
    label = kNothing;
  }
  Mark& next = at(written_);
  check(cudaEventRecord(next.event.get(), stream), "recording an event");
  next.label = open_ = label;
  next.recorded = open_is_recorded_ = recorded && label != kNothing;
  next.detail = open_detail_ = detail_;
  next.step = recorded ? ring_->step : 0;
  next.bytes = 0;
  ++written_;
}

void WorkTimer::read_reached() {
  for (; written_ - read_ >= 2; ++read_) {
    const Mark &begin = at(read_), &end = at(read_ + 1);
    if (begin.label == kNothing) continue;
    const cudaError_t state = cudaEventQuery(end.event.get());
    if (state == cudaErrorNotReady) return;
    check(state, "the work before an event");
    read(begin, end);
  }
}

void WorkTimer::read(const Mark& begin, const Mark& end) {
  const double milliseconds = static_cast<double>(milliseconds_between(begin.event, end.event));
  seconds_[begin.label] += 1e-3 * milliseconds;
  if (!begin.recorded) return;
  TraceSpan span;
  const double since = static_cast<double>(milliseconds_between(compared_, begin.event));
  span.begin = compared_at_ + static_cast<std::int64_t>(1e6 * since);
  span.end = span.begin + static_cast<std::int64_t>(1e6 * milliseconds);
  span.detail = begin.detail;
  span.bytes = begin.bytes;
  span.label = static_cast<std::uint8_t>(begin.label);
  span.step = begin.step;
  ring_->keep(span);
}

void WorkTimer::take(LabelSeconds& sum) {
  read_reached();
  for (std::size_t label = 0; label < kLabels; ++label) sum[label] += seconds_[label];
  seconds_ = {};
}

}  // namespace dp::kernels::cuda
