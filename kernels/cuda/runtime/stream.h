// Streams and events over CUDA's.
#pragma once

#include <chrono>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/runtime/guard.h"
#include "kernels/cuda/runtime/owner.h"
#include "kernels/cuda/runtime/staging.h"
#include "kernels/cuda/runtime/work_timer.h"

namespace dp::kernels::cuda {

// For work that goes on after an abort.
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
  // `staging`, `siblings`, in which the stream is while it lives, and `guards` belong to the context and outlive it. So does `abort`,
  // which may be null: once it is raised, whoever waits for the stream throws Aborted.
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
  // From ordinary host memory through pinned slots: `src` is read before the call returns.
  void copy(void* dst, const void* src, std::size_t bytes) override;
  // Through pinned memory: CUDA itself waits for all earlier work in a copy to ordinary memory, also where that never ends.
  void download(void* dst, const void* src, std::size_t bytes) override;
  void upload(void* dst, const void* src, std::size_t bytes) override;  // as a kernel's argument
  void synchronize() override;
  void synchronize(Event& event) override;

  // For those who enqueue themselves: `work` before something that counts as the present label's, `wait` for other streams.
  cudaStream_t work() {
    timer_.work(native());
    return native();
  }
  void worked() { timer_.worked(native()); }                          // after a piece of it
  void count_bytes(std::size_t bytes) { timer_.count_bytes(bytes); }  // that it brings to or from other replicas
  void wait(cudaEvent_t event);
  // While it is captured, events that measure would be part of the graph.
  void suspend_timing() { timer_.suspend(native()); }
  void resume_timing() { timer_.resume(); }
  cudaStream_t native() const { return handle_.get(); }
  int device() const { return device_; }
  bool idle() const;
  void take_seconds(LabelSeconds& sum);

 private:
  bool aborted() const { return abort_ != nullptr && abort_->load(std::memory_order_relaxed); }
  // Returns when query() gives success. A call that waits inside CUDA would not end where another device, for whose event this stream
  // waits, is broken.
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

// `bytes` (at most 256) from the host to `dst`; read before the call returns. In upload.cu.
void upload_bytes(void* dst, const void* src, std::size_t bytes, cudaStream_t stream);

}  // namespace dp::kernels::cuda
