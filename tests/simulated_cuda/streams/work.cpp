#include "simulated_cuda/streams/work.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "simulated_cuda/emulator/detector.h"
#include "simulated_cuda/runtime/devices.h"
#include "simulated_cuda/runtime/errors.h"
#include "simulated_cuda/runtime/pinned_memory.h"
#include "simulated_cuda/runtime/quiet_lock.h"
#include "simulated_cuda/runtime/source_line.h"
#include "simulated_cuda/streams/functions.h"

namespace dp::simt {
namespace {

// The operation that runs on this thread. In race builds operations run one at a time, because they share the
// detector's shadow.
class RunningOperation {
 public:
  RunningOperation(const char* what, int device, std::uint32_t operation) {
    running = {what, device};
    if (detector == nullptr) return;
    ignore_sync_begin();
    turn().lock();
    detector->begin(operation);
  }
  ~RunningOperation() {
    running = {};
    if (detector == nullptr) return;
    detector->end();
    turn().unlock();
    ignore_sync_end();
  }
  RunningOperation(const RunningOperation&) = delete;
  RunningOperation& operator=(const RunningOperation&) = delete;

 private:
  static std::mutex& turn() {
    static auto& mutex = *new std::mutex;
    return mutex;
  }
};

void fail_device(int index, cudaError_t error, const std::string& text) {
  device(index).sticky = error;
  report(text);
}

// The reason why a kernel on device `index` cannot use the memory behind a pointer parameter; empty if it can.
std::string check_pointer(const KernelPointer& pointer, int index) {
  if (pointer.address == nullptr) return {};
  const int owner = owner_of(pointer.address);
  if (owner < 0) return is_pinned(pointer.address) ? "" : "a pointer to host memory that no device reaches";
  if (owner != index && !device(index).reaches[owner])
    return "a pointer to memory of " + device_name(owner) + ", which is no peer";
  Allocation found;
  if (!device(owner).memory.find(pointer.address, found))
    return "a pointer to unallocated memory of " + device_name(owner);
  return {};
}

bool all_pointers_usable(const KernelWork& work, int index) {
  for (std::size_t i = 0; i < work.pointer_count; ++i) {
    const std::string problem = check_pointer(work.pointers[i], index);
    if (problem.empty()) continue;
    fail_device(index, cudaErrorIllegalAddress,
                std::string("kernel ") + work.grid.kernel + " on " + device_name(index) + " was given " + problem);
    return false;
  }
  return true;
}

// Copies in pieces, so that an early reader finds a mix of old and new values.
void copy_slowly(char* to, const char* from, std::size_t bytes) {
  constexpr std::size_t kPieces = 4;
  for (std::size_t piece = 0, at = 0; piece < kPieces; ++piece) {
    const std::size_t end = bytes * (piece + 1) / kPieces;
    std::memcpy(to + at, from + at, end - at);
    at = end;
    if (bytes >= 4096) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

}  // namespace

Work launched(const Work& work) {
  Work now = work;
  if (auto* foreign = std::get_if<ForeignWork>(&now); foreign != nullptr && foreign->launched != nullptr)
    foreign->data = foreign->launched(foreign->data);
  return now;
}

std::string describe(const Work& work) {
  if (const auto* kernel = std::get_if<KernelWork>(&work)) return std::string("kernel ") + kernel->grid.kernel;
  if (const auto* copy = std::get_if<CopyWork>(&work)) return "a copy of " + std::to_string(copy->bytes) + " bytes";
  if (const auto* fill = std::get_if<FillWork>(&work)) return "a fill of " + std::to_string(fill->bytes) + " bytes";
  if (const auto* foreign = std::get_if<ForeignWork>(&work)) return foreign->name;
  return "a host function";
}

void announce(const ForeignWork& work, int index, std::uint32_t operation, const std::vector<TouchedMemory>& touched) {
  const RunningOperation running_operation(work.name, index, operation);
  for (const TouchedMemory& memory : touched) {
    memory.written ? announce_write(memory.begin, memory.bytes) : announce_read(memory.begin, memory.bytes);
    if (detector != nullptr) detector->range(memory.begin, memory.bytes, memory.written ? Access::write : Access::read);
  }
}

void run(KernelWork& work, int index, std::uint32_t operation) {
  work.grid.arguments = work.arguments.data();
  if (!all_pointers_usable(work, index)) return;
  const RunningOperation running_operation(work.grid.kernel, index, operation);
  for (std::size_t i = 0; i < work.pointer_count; ++i) {
    const KernelPointer& pointer = work.pointers[i];
    pointer.written ? announce_write(pointer.address, pointer.bytes) : announce_read(pointer.address, pointer.bytes);
  }
  const QuietAccesses quiet;
  const OpenMemory open(reachable_from(index));
  std::size_t static_bytes = 0;
  const Failure failure = run_grid(work.grid, static_bytes);
  note_static(work.function, static_bytes);
  if (failure.text.empty()) return;
  fail_device(index, failure.error,
              std::string("kernel ") + work.grid.kernel + " on " + device_name(index) + ": " + failure.text +
                  source_line(failure.code));
}

void run(CopyWork& work, int index, std::uint32_t operation, bool slowly) {
  const RunningOperation running_operation("a copy", index, operation);
  if (work.staged == nullptr) announce_read(work.from, work.bytes);
  announce_write(work.to, work.bytes);
  const QuietAccesses quiet;
  unsigned devices = 0;
  if (work.to_device >= 0) devices |= 1u << work.to_device;
  if (work.from_device >= 0) devices |= 1u << work.from_device;
  const OpenMemory open(devices);
  if (detector != nullptr) {
    if (work.staged == nullptr) detector->range(work.from, work.bytes, Access::read);
    detector->range(work.to, work.bytes, Access::write);
  }
  char* const to = static_cast<char*>(work.to);
  const char* const from = static_cast<const char*>(work.staged != nullptr ? work.staged : work.from);
  if (slowly) {
    copy_slowly(to, from, work.bytes);
  } else {
    std::memmove(to, from, work.bytes);
  }
  if (work.corrupt)
    for (std::size_t i = 0; i < work.bytes; i += 64) to[i] = static_cast<char>(to[i] ^ 0x10);
  std::free(work.staged);
  work.staged = nullptr;
}

void run(FillWork& work, int index, std::uint32_t operation) {
  const RunningOperation running_operation("a fill", index, operation);
  announce_write(work.to, work.bytes);
  const QuietAccesses quiet;
  const OpenMemory open(1u << index);
  if (detector != nullptr) detector->range(work.to, work.bytes, Access::write);
  std::memset(work.to, work.value, work.bytes);
}

}  // namespace dp::simt

#if defined(DP_THREAD_SANITIZER)
// The sanitizer's report shows the simulation's frames. This adds the name of the kernel.
extern "C" void __tsan_on_report(void*) {
  using dp::simt::running;
  if (running.what != nullptr)
    std::fprintf(stderr, "simulated CUDA: the race above was seen by %s on cuda:%d\n", running.what, running.device);
}
#endif
