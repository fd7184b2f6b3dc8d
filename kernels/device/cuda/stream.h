// CUDA streams and events, staged copies, and NVTX ranges.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <span>
#include <vector>

#include "kernels/device/backend.h"
#include "kernels/device/cuda/check.h"
#include "kernels/device/cuda/owner.h"
#include "kernels/device/cuda/work_timer.h"

namespace dp::kernels::cuda {

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
