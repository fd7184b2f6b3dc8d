// What carries the calls of a communicator between processes: one call at a time, on a thread of its own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/comm/collective_call.h"

namespace dp::kernels {

struct WireJob {
  std::uint64_t number = 0;  // of this communicator's calls, from 0
  CollectiveCall call;
  void* data = nullptr;            // the rank's range, or gather's and scatter's whole
  void* part = nullptr;            // of gather and scatter
  std::int64_t stride = 0;         // elements between summands
  std::vector<std::size_t> bytes;  // of gather and scatter: each rank's part
  std::int64_t sent = 0;           // once done: bytes that this rank sent, as far as the wire counts them
};

// Whether a call shall end without being done: its communicator was asked to stop, or the engine's abort flag is up.
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
  // Called by one thread at a time. Returns when this rank's memory is no longer needed by the call and holds its result;
  // throws Error, or Aborted soon after `halt` is asked. Touches no memory of the job after either; is not called after a throw.
  virtual void run(const WireJob& job, const Halt& halt) = 0;
  // Bytes of data that this rank has sent in all calls so far; 0 where nobody counts them.
  virtual std::int64_t bytes_sent() const { return 0; }
  // From any thread: a running call looks at its halt now.
  virtual void wake() = 0;
};

inline bool is_sum(Collective kind) {
  return kind == Collective::all_reduce || kind == Collective::reduce || kind == Collective::reduce_scatter;
}

// The elements of summed and typed calls, the bytes of the others, that `rank` owns.
inline Range owned_by(const CollectiveCall& call, int rank, int size) {
  if (call.kind != Collective::all_gather_parts) return slice_of(call.count, rank, size);
  const std::int64_t part = call.count / size;
  return {rank * part, (rank + 1) * part};
}

}  // namespace dp::kernels
