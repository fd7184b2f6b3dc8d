// CUDA streams and events, the time of their work, staged copies, and NVTX ranges.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/device/backend.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/device/trace_ring.h"

namespace dp::kernels::cuda {

// Measures the work of one stream with CUDA events. It records an event where labelled work begins or ends, and reads
// it once the device has reached it. It always adds up seconds per label. While a ring records, it also stores each
// piece of work as a span. It waits for the device only at the first recorded span, to relate the device clock to the
// host clock.
//
// Seconds include the gaps between launches of the same label. A span ends where its work ends.
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

// NVTX ranges that name a thread's activity in NVIDIA's profilers. No effect without a profiler.

void begin_range(const char* name);
void end_range();  // ends the latest range of this thread

// Pinned buffers for copies between ordinary host memory and a device. A copy to the device then does not wait for the
// stream, and its source may be freed at once.
class Staging {
 public:
  void prepare();  // call first, with the device current
  // Grows every slot to at least `bytes`. Pinned allocation can wait for every device, so call it while no collective
  // runs.
  void reserve(std::size_t bytes);
  // Enqueues a copy of `bytes` from host memory to `dst`. Waits if the slot's last copy, kSlots copies ago, is not
  // done. Grows the slot if `bytes` exceeds the reserved size.
  void copy_in(void* dst, const void* src, std::size_t bytes, cudaStream_t stream);

  // Buffer for downloads, one piece at a time.
  std::span<std::byte> out() { return {static_cast<std::byte*>(out_.get()), kOut}; }

 private:
  static constexpr std::size_t kSlots = 8;
  static constexpr std::size_t kOut = 1 << 20;
  struct Slot {
    PinnedMemory memory;
    std::size_t bytes = 0;
    EventHandle copied;
  };
  void grow(Slot& slot, std::size_t bytes);

  std::array<Slot, kSlots> slots_;
  std::size_t next_ = 0;
  PinnedMemory out_;
  std::vector<PinnedMemory> retired_;  // of slots that have grown; freeing pinned memory waits for every device
};

// CUDA streams and events.

// Time for work to end after an abort.
inline constexpr std::chrono::seconds kAbortPatience{5};

// Its clock. Tests replace it.
inline std::chrono::steady_clock::time_point (*abort_clock)() = &std::chrono::steady_clock::now;

// Makes `device` the calling thread's current one.
void bind_device(int device);

struct CudaEvent final : Event {
  EventHandle handle = make_event_handle();
};

class CudaStream;
using StreamList = std::vector<CudaStream*>;

class CudaStream final : public Stream {
 public:
  // `staging`, `siblings` and `guards` belong to the context and outlive the stream. The stream is in `siblings` while
  // it exists. `abort` outlives it too and may be null. Once `abort` is set, every wait for the stream throws Aborted.
  CudaStream(int device, StreamUse use, Staging& staging, StreamList& siblings, const Guards& guards,
             const AbortFlag* abort);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  void record(Event& event) override;
  void wait(Event& event) override;
  void label(std::size_t label) override { timer_.label(label); }
  void detail(std::uint64_t detail) override { timer_.detail(detail); }
  void trace(TraceRing* ring) override;
  // A copy from ordinary host memory uses pinned slots: `src` is read before the call returns.
  void copy(void* dst, const void* src, std::size_t bytes) override;
  // Uses pinned memory. CUDA's own copy to ordinary memory waits for all earlier work, even if that work never ends.
  void download(void* dst, const void* src, std::size_t bytes) override;
  void upload(void* dst, const void* src, std::size_t bytes) override;  // passes the data as a kernel argument
  void synchronize() override;
  void synchronize(Event& event) override;

  // For callers that enqueue on native(): work() before work that counts for the current label, wait() for other
  // streams' events.
  cudaStream_t work() {
    timer_.work(native());
    return native();
  }
  void worked() { timer_.worked(native()); }                          // after the work
  void count_bytes(std::size_t bytes) { timer_.count_bytes(bytes); }  // bytes exchanged with other replicas
  void wait(cudaEvent_t event);
  // Timing events recorded during a capture would become part of the graph.
  void suspend_timing() { timer_.suspend(native()); }
  void resume_timing() { timer_.resume(); }
  cudaStream_t native() const { return handle_.get(); }
  int device() const { return device_; }
  bool idle() const;
  void take_seconds(LabelSeconds& sum);

 private:
  bool aborted() const { return abort_ != nullptr && abort_->load(std::memory_order_relaxed); }
  // Polls until query() returns cudaSuccess. A wait inside CUDA might never end: this stream may wait for an event of
  // another, broken device.
  template <typename Query>
  void wait_until(const Query& query, const char* what);

  int device_;
  Staging& staging_;
  StreamList& siblings_;
  const Guards& guards_;
  const AbortFlag* const abort_;
  StreamHandle handle_;
  WorkTimer timer_;
};

inline CudaStream& of_cuda(Stream& stream) { return static_cast<CudaStream&>(stream); }

// Copies at most 256 bytes from the host to `dst`. `src` is read before the call returns. In upload.cu.
void upload_bytes(void* dst, const void* src, std::size_t bytes, cudaStream_t stream);

}  // namespace dp::kernels::cuda
