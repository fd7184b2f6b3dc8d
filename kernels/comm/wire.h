// The transport of a communicator's calls between processes. It runs one call at a time, on a communication thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/comm/communicator.h"
#include "kernels/device/backend.h"

namespace dp::kernels {

struct WireJob {
  std::uint64_t number = 0;  // call number in this communicator, from 0
  CollectiveCall call;
  void* data = nullptr;            // the rank's array, or `whole` for a call in parts
  void* part = nullptr;            // for gather and scatter only
  std::int64_t stride = 0;         // elements between summands
  std::vector<std::size_t> bytes;  // for gather and scatter: the size of each rank's part
};

// A request to stop a running call: from ask(), or from the engine's abort flag.
class Halt {
 public:
  explicit Halt(const AbortFlag* abort) : abort_(abort) {}
  void ask() { asked_.store(true); }
  bool asked() const { return asked_.load() || (abort_ != nullptr && abort_->load(std::memory_order_acquire)); }

 private:
  const AbortFlag* abort_;
  std::atomic<bool> asked_{false};
};

class Wire {
 public:
  virtual ~Wire() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string name() const = 0;
  // Called by one thread at a time. Returns when this rank's memory holds the result and the call no longer needs it.
  // Throws Error, or Aborted soon after `halt` is asked, which it polls. Does not access the job's memory after it
  // returns or throws (exception: mpi/mpi_wire.cpp). Must not be called again after it has thrown.
  virtual void run(const WireJob& job, const Halt& halt) = 0;
};

inline bool is_sum(Collective kind) {
  return kind == Collective::all_reduce || kind == Collective::reduce || kind == Collective::reduce_scatter;
}

// The range that `rank` owns: in elements, or in bytes for calls in parts.
inline Range owned_by(const CollectiveCall& call, int rank, int size) {
  if (call.kind != Collective::all_gather_parts) return slice_of(call.count, rank, size);
  const std::int64_t part = call.count / size;
  return {rank * part, (rank + 1) * part};
}

}  // namespace dp::kernels
