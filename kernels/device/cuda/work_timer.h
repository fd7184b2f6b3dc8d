// Measures the work of one stream with CUDA events. It records an event where labelled work begins or ends, and reads
// it once the device has reached it. It always adds up seconds per label. While a ring records, it also stores each
// piece of work as a span. It waits for the device only at the first recorded span, to relate the device clock to the
// host clock.
//
// Seconds include the gaps between launches of the same label. A span ends where its work ends.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/device/backend.h"
#include "kernels/device/cuda/owner.h"
#include "kernels/device/trace_ring.h"

namespace dp::kernels::cuda {

class WorkTimer {
 public:
  // Creates its events for the current device, so that marks create none.
  WorkTimer() = default;

  void label(std::size_t label) { label_ = label; }
  void detail(std::uint64_t detail) { detail_ = detail; }
  // Null ends recording. Spans already in the ring stay; work that the device has not reached is lost.
  void trace(TraceRing* ring);

  // Call before enqueueing work on `stream`: always the same stream, on the current device.
  void work(cudaStream_t stream) {
    if (suspended_) return;
    if (open_ != label_ || recording() != open_is_recorded_ || (recording() && detail_ != open_detail_))
      mark(label_, stream);
  }
  // Call after a piece of work.
  void worked(cudaStream_t stream) {
    if (open_is_recorded_) pause(stream);
  }
  // Call before the stream waits for another stream or becomes idle.
  void pause(cudaStream_t stream) {
    if (open_ != kNothing) mark(kNothing, stream);
  }
  // Until resume(), measures and enqueues nothing.
  void suspend(cudaStream_t stream) {
    pause(stream);
    suspended_ = true;
  }
  void resume() { suspended_ = false; }
  // Bytes that the current piece exchanges with other devices.
  void count_bytes(std::size_t bytes) {
    if (open_is_recorded_) at(written_ - 1).bytes += static_cast<std::int64_t>(bytes);
  }

  // Adds the seconds of all work that the device has finished since the last call.
  void take(LabelSeconds& sum);
  // Reads the finished marks into the seconds and the ring.
  void read_reached();

 private:
  static constexpr std::size_t kNothing = kLabels;
  // Marks for about two steps. Work beyond them is not measured.
  static constexpr std::size_t kMarks = 256, kRecordedMarks = 768;
  struct Mark {
    EventHandle event = make_timed_event_handle();
    std::size_t label{};       // of the work after it
    bool recorded = false;     // the work is also a span
    std::uint64_t detail = 0;  // of a span
    std::int64_t step = 0;     // of a span
    std::int64_t bytes = 0;    // of a span
  };

  bool recording() const { return ring_ != nullptr && ring_->recording; }
  void mark(std::size_t label, cudaStream_t stream);
  void compare_clocks(cudaStream_t stream);
  void read(const Mark& begin, const Mark& end);
  Mark& at(std::uint64_t number) { return marks_[number % marks_.size()]; }

  std::vector<Mark> marks_ = std::vector<Mark>(kMarks);
  std::uint64_t written_ = 0, read_ = 0;
  std::size_t label_ = 0, open_ = kNothing;  // open_: label measured now, or kNothing
  std::uint64_t detail_ = 0, open_detail_ = 0;
  bool open_is_recorded_ = false, suspended_ = false;
  LabelSeconds seconds_{};
  TraceRing* ring_ = nullptr;
  EventHandle compared_;  // reached at trace_clock() == compared_at_; null: not yet compared
  std::int64_t compared_at_ = 0;
};

}  // namespace dp::kernels::cuda
