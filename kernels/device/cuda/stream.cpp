#include "kernels/device/cuda/stream.h"

#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <thread>
#include <utility>

#include "kernels/device/cuda/cuda_op.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/op_args.h"

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

// NVTX replaces its function pointers on the first call, without synchronisation. The first call is hence made once,
// and all others wait for it.
void begin_range(const char* name) {
  static const bool initialized = (nvtxInitialize(nullptr), true);
  static_cast<void>(initialized);
  nvtxRangePushA(name);
}
void end_range() { nvtxRangePop(); }

void Staging::prepare() { out_ = pinned_memory(kOut); }

// Requires that the slot's last copy is done.
void Staging::grow(Slot& slot, std::size_t bytes) {
  if (!slot.copied) slot.copied = make_event_handle();
  if (slot.bytes >= bytes) return;
  PinnedMemory larger = pinned_memory(bytes);
  if (slot.memory) retired_.push_back(std::move(slot.memory));
  slot.memory = std::move(larger);
  slot.bytes = bytes;
}

void Staging::reserve(std::size_t bytes) {
  for (Slot& slot : slots_) {
    if (slot.copied) check(cudaEventSynchronize(slot.copied.get()), "waiting for a copy to the device");
    grow(slot, bytes);
  }
}

void Staging::copy_in(void* dst, const void* src, std::size_t bytes, cudaStream_t stream) {
  Slot& slot = slots_[next_];
  next_ = (next_ + 1) % kSlots;
  if (slot.copied) check(cudaEventSynchronize(slot.copied.get()), "waiting for a copy to the device");
  grow(slot, bytes);
  std::memcpy(slot.memory.get(), src, bytes);
  check(cudaMemcpyAsync(dst, slot.memory.get(), bytes, cudaMemcpyHostToDevice, stream), "copying to the device");
  check(cudaEventRecord(slot.copied.get(), stream), "recording an event");
}

namespace {

cudaPointerAttributes attributes_of(const void* pointer) {
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, pointer), "reading pointer attributes");
  return attributes;
}

// Poll interval, used after a first period without sleeping. A sleep takes about four times kPause, as long as a small
// step.
constexpr std::chrono::microseconds kPause{20}, kWithoutPause{200};

cudaEvent_t handle_of(Event& event) { return static_cast<CudaEvent&>(event).handle.get(); }

}  // namespace

void bind_device(int device) {
  int current = -1;
  check(cudaGetDevice(&current), "reading the current device");
  if (current != device) check(cudaSetDevice(device), "setting the device");
}

CudaStream::CudaStream(int device, StreamUse use, Staging& staging, StreamList& siblings, const Guards& guards,
                       const AbortFlag* abort)
    : device_(device),
      staging_(staging),
      siblings_(siblings),
      guards_(guards),
      abort_(abort),
      handle_(use == StreamUse::communication ? make_urgent_stream_handle() : make_stream_handle()) {
  siblings_.push_back(this);
}

// Waits for the stream's work: the memory that it uses is freed next, also during stack unwinding.
CudaStream::~CudaStream() {
  std::erase(siblings_, this);
  if (!aborted()) {
    cudaStreamSynchronize(native());
    return;
  }
  const auto end = abort_clock() + kAbortPatience;
  while (!handles_abandoned && cudaStreamQuery(native()) == cudaErrorNotReady) {
    if (abort_clock() > end) handles_abandoned = true;
    std::this_thread::sleep_for(kPause);
  }
  cudaGetLastError();
}

template <typename Query>
void CudaStream::wait_until(const Query& query, const char* what) {
  const auto begin = std::chrono::steady_clock::now();
  for (cudaError_t state; (state = query()) != cudaSuccess;) {
    if (state != cudaErrorNotReady) check(state, what);
    cudaGetLastError();
    if (aborted()) {
      check_all(guards_);
      throw Aborted();
    }
    if (std::chrono::steady_clock::now() - begin < kWithoutPause)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(kPause);
  }
  check_all(guards_);
}

void CudaStream::record(Event& event) {
  bind_device(device_);
  check(cudaEventRecord(handle_of(event), native()), "recording an event");
}

void CudaStream::wait(Event& event) {
  bind_device(device_);
  wait(handle_of(event));
}

void CudaStream::wait(cudaEvent_t event) {
  timer_.pause(native());
  check(cudaStreamWaitEvent(native(), event, 0), "waiting in a stream");
}

void CudaStream::trace(TraceRing* ring) {
  bind_device(device_);
  timer_.pause(native());
  check(cudaStreamSynchronize(native()), "the work of a stream");
  timer_.read_reached();
  timer_.trace(ring);
}

void CudaStream::copy(void* dst, const void* src, std::size_t bytes) {
  if (bytes == 0) return;
  bind_device(device_);
  const cudaPointerAttributes from = attributes_of(src), to = attributes_of(dst);
  if (from.type == cudaMemoryTypeUnregistered && to.type != cudaMemoryTypeUnregistered)
    staging_.copy_in(dst, src, bytes, work());
  else if (from.type == cudaMemoryTypeDevice && to.type == cudaMemoryTypeDevice && from.device != to.device)
    check(cudaMemcpyPeerAsync(dst, to.device, src, from.device, bytes, work()), "copying between devices");
  else
    check(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, work()), "copying");
  worked();
}

void CudaStream::download(void* dst, const void* src, std::size_t bytes) {
  bind_device(device_);
  if (bytes == 0) synchronize();
  for (std::size_t at = 0; at < bytes;) {
    const std::span<std::byte> piece = staging_.out().first(std::min(bytes - at, staging_.out().size()));
    check(cudaMemcpyAsync(piece.data(), static_cast<const std::byte*>(src) + at, piece.size(), cudaMemcpyDeviceToHost,
                          work()),
          "copying from the device");
    worked();
    synchronize();
    std::memcpy(static_cast<std::byte*>(dst) + at, piece.data(), piece.size());
    at += piece.size();
  }
}

void CudaStream::upload(void* dst, const void* src, std::size_t bytes) {
  if (bytes == 0) return;
  bind_device(device_);
  upload_bytes(dst, src, bytes, work());
  worked();
}

void CudaStream::synchronize() {
  bind_device(device_);
  wait_until([&] { return cudaStreamQuery(native()); }, "the work of a stream");
}

void CudaStream::synchronize(Event& event) {
  bind_device(device_);
  wait_until([&] { return cudaEventQuery(handle_of(event)); }, "the work before an event");
}

bool CudaStream::idle() const {
  const cudaError_t state = cudaStreamQuery(native());
  if (state == cudaErrorNotReady) return false;
  check(state, "the work of a stream");
  return true;
}

void CudaStream::take_seconds(LabelSeconds& sum) {
  timer_.pause(native());
  timer_.take(sum);
}

// Ops choose kernels by the alignment of their pointers. Some ops also choose by whether argument 1 (a second gradient)
// is null.
void CudaOp::load_kernels() {
  const KernelLoading loading;
  const auto pointer = [](std::uintptr_t address) { return reinterpret_cast<void*>(address); };
  for (const std::uintptr_t address : {1024, 1028})
    for (const std::size_t null : {0, 1}) {  // index of the null argument; 0: none
      std::array<void*, kMaxOpArgs> args;
      args.fill(pointer(address));
      if (null != 0) args[null] = nullptr;
      enqueue(nullptr, args, pointer(1024));
    }
}

void CudaOp::run(Stream& stream, std::span<void* const> args, void* workspace) {
  bind_device(of_cuda(stream).device());
  enqueue(of_cuda(stream).work(), args, workspace);
  of_cuda(stream).worked();
}

}  // namespace dp::kernels::cuda
