// What one stream's work took, measured by the device: an event wherever labelled work begins or ends, read once it has been
// reached. Seconds by label always; while a ring records, also each piece of work as a span. Nothing waits for the device, but for
// the first piece that is recorded, at which the device's clock is compared with the host's.
//
// Seconds count work that lies between two events with the gaps between its launches; spans end where their work does.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/runtime/owner.h"
#include "kernels/trace_ring.h"

namespace dp::kernels::cuda {

class WorkTimer {
 public:
  // Makes its events for the current device, so that measuring makes none.
  WorkTimer() = default;

  void label(std::size_t label) { label_ = label; }
  void detail(std::uint64_t detail) { detail_ = detail; }
  // Null ends it. What was recorded before is kept; what has not been reached by now is lost.
  void trace(TraceRing* ring);

  // Before work is enqueued on `stream`, always the same one and of the current device.
  void work(cudaStream_t stream) {
    if (suspended_) return;
    if (open_ != label_ || recording() != open_is_recorded_ || (recording() && detail_ != open_detail_))
      mark(label_, stream);
  }
  // After a piece of work.
  void worked(cudaStream_t stream) {
    if (open_is_recorded_) pause(stream);
  }
  // Before the stream waits for another, or rests.
  void pause(cudaStream_t stream) {
    if (open_ != kNothing) mark(kNothing, stream);
  }
  // Until resume() nothing is measured, and nothing enqueued for it.
  void suspend(cudaStream_t stream) {
    pause(stream);
    suspended_ = true;
  }
  void resume() { suspended_ = false; }
  // What the present piece brings to or from other devices.
  void count_bytes(std::size_t bytes) {
    if (open_is_recorded_) at(written_ - 1).bytes += static_cast<std::int64_t>(bytes);
  }

  // Adds what has been reached since the last call.
  void take(LabelSeconds& sum);
  // Brings what has been reached to the ring.
  void read_reached();

 private:
  static constexpr std::size_t kNothing = kLabels;
  // Of about two steps; what finds no place is not measured.
  static constexpr std::size_t kMarks = 256, kRecordedMarks = 768;
  struct Mark {
    EventHandle event = make_timed_event_handle();
    std::size_t label{};       // of the work behind it
    bool recorded = false;     // what follows is of a span, not only of a sum
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
  std::size_t label_ = 0, open_ = kNothing;  // open_: what is measured now
  std::uint64_t detail_ = 0, open_detail_ = 0;
  bool open_is_recorded_ = false, suspended_ = false;
  LabelSeconds seconds_{};
  TraceRing* ring_ = nullptr;
  EventHandle compared_;  // reached at compared_at_ of trace_clock(); null: not yet
  std::int64_t compared_at_ = 0;
};

}  // namespace dp::kernels::cuda
