#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>

#include "simulated_cuda/driver_lock.h"
#include "simulated_cuda/emulator/detector.h"
#include "simulated_cuda/runtime/default_clock.h"
#include "simulated_cuda/runtime/devices.h"
#include "simulated_cuda/runtime/errors.h"
#include "simulated_cuda/runtime/handles.h"
#include "simulated_cuda/runtime/pinned_memory.h"
#include "simulated_cuda/streams/capture.h"

using namespace dp::simt;

namespace {

// CUDA stages pageable sources up to this size: it reads them before the call returns. Larger sources are read later.
constexpr std::size_t kStagedAtOnce = 64 * 1024;

// The reason why the range is not valid for a copy; empty if it is valid.
std::string check_range(const void* address, std::size_t bytes, const char* side) {
  if (address == nullptr) return std::string("the ") + side + " is null";
  const int owner = owner_of(address);
  if (owner < 0) return {};
  Allocation found;
  if (!device(owner).memory.find(address, found))
    return std::string("the ") + side + " is unallocated memory of " + device_name(owner);
  if (!found.holds(address, bytes))
    return std::string("the ") + side + " ends behind its allocation of " + std::to_string(found.bytes) + " bytes";
  return {};
}

bool kind_fits(cudaMemcpyKind kind, int to, int from) {
  switch (kind) {
    case cudaMemcpyDefault: return true;
    case cudaMemcpyHostToHost: return to < 0 && from < 0;
    case cudaMemcpyHostToDevice: return to >= 0 && from < 0;
    case cudaMemcpyDeviceToHost: return to < 0 && from >= 0;
    case cudaMemcpyDeviceToDevice: return to >= 0 && from >= 0;
  }
  return false;
}

// Fills in the devices of the work. Returns an error that has been reported if the copy is invalid.
cudaError_t prepare(CopyWork& work, const char* call, cudaMemcpyKind kind) {
  for (const std::string& problem :
       {check_range(work.to, work.bytes, "destination"), check_range(work.from, work.bytes, "source")})
    if (!problem.empty()) return misused(cudaErrorInvalidValue, call, problem);
  work.to_device = owner_of(work.to);
  work.from_device = owner_of(work.from);
  if (!kind_fits(kind, work.to_device, work.from_device))
    return misused(cudaErrorInvalidMemcpyDirection, call, "the direction is not the one that the addresses have");
  return cudaSuccess;
}

// Whether the copy uses a corrupting peer path. Without peer access the copy is staged through the host.
bool arrives_changed(const CopyWork& work) {
  const int to = work.to_device, from = work.from_device;
  return to >= 0 && from >= 0 && to != from && (device(from).reaches[to] || device(to).reaches[from]) &&
         simulation().peers[from][to] == Peer::corrupts;
}

void stage(CopyWork& work) {
  if (work.from_device >= 0 || is_pinned(work.from) || work.bytes > kStagedAtOnce) return;
  work.staged = std::malloc(work.bytes);
  std::memcpy(work.staged, work.from, work.bytes);
}

}  // namespace

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t handle) {
  Stream* const stream = as_stream(handle, "cudaMemcpyAsync");
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = sticky_error(stream->device())) return error;
  if (bytes == 0) return cudaSuccess;
  CopyWork work{to, from, bytes, -1, -1};
  if (const cudaError_t error = prepare(work, "cudaMemcpyAsync", kind)) return error;
  if ((work.to_device < 0 && !is_pinned(to)) || (work.from_device < 0 && !is_pinned(from)))
    may_block("a copy of pageable memory");
  for (const int side : {work.to_device, work.from_device})
    if (side >= 0 && side != stream->device() && !device(stream->device()).reaches[side])
      return misused(
          cudaErrorInvalidValue, "cudaMemcpyAsync",
          "memory of " + device_name(side) + ", which is no peer, on " + stream->name() + "; use cudaMemcpyPeerAsync");
  work.corrupt = arrives_changed(work);
  if (stream->capture() == nullptr) stage(work);
  return submit(*stream, work, "cudaMemcpyAsync");
}

cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                                cudaStream_t handle) {
  Stream* const stream = as_stream(handle, "cudaMemcpyPeerAsync");
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = sticky_error(stream->device())) return error;
  if (bytes == 0) return cudaSuccess;
  CopyWork work{to, from, bytes, -1, -1};
  if (const cudaError_t error = prepare(work, "cudaMemcpyPeerAsync", cudaMemcpyDeviceToDevice)) return error;
  if (work.to_device != to_device || work.from_device != from_device)
    return misused(cudaErrorInvalidValue, "cudaMemcpyPeerAsync", "the memory is not that of the devices named");
  if (stream->device() != to_device && stream->device() != from_device)
    return misused(cudaErrorInvalidValue, "cudaMemcpyPeerAsync", "the stream belongs to neither device");
  work.corrupt = arrives_changed(work);
  return submit(*stream, work, "cudaMemcpyPeerAsync");
}

// Synchronous. Ordered only after work that the host has waited for.
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const int index = current_device();
  may_block("cudaMemcpy");
  if (const cudaError_t error = refuse_while_capturing("cudaMemcpy")) return error;
  if (const cudaError_t error = sticky_error(index)) return error;
  if (bytes == 0) return cudaSuccess;
  CopyWork work{to, from, bytes, -1, -1};
  if (const cudaError_t error = prepare(work, "cudaMemcpy", kind)) return error;
  std::uint32_t operation = 0;
  if (detector != nullptr) operation = detector->operation(default_clock(), describe(work) + " by cudaMemcpy");
  run(work, index, operation, false);
  if (detector != nullptr) detector->host_waited_for_stream(default_clock());
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t handle) {
  Stream* const stream = as_stream(handle, "cudaMemsetAsync");
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = sticky_error(stream->device())) return error;
  if (bytes == 0) return cudaSuccess;
  if (const std::string problem = check_range(to, bytes, "destination"); !problem.empty())
    return misused(cudaErrorInvalidValue, "cudaMemsetAsync", problem);
  if (owner_of(to) != stream->device())
    return misused(cudaErrorInvalidValue, "cudaMemsetAsync", "this is no memory of the device of " + stream->name());
  return submit(*stream, FillWork{to, value, bytes}, "cudaMemsetAsync");
}
