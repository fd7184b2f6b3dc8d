// Streams and events of host backends. An event is a stream's progress counter and a ticket. It is reached when that
// many tasks of the stream are done.
//
// There are two implementations. inline_stream.h runs work in the calling thread; it is the one for production.
// threaded_stream.h has one thread per stream and random delays; it is for tests.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/backend.h"
#include "kernels/host/stream_group.h"
#include "kernels/host/task.h"

namespace dp::kernels {

inline constexpr std::size_t kMaxUploadBytes = 256;
inline constexpr std::size_t kQueuedTasks = 256;  // capacity of a stream's queue; a further submit() waits

struct HostEvent final : Event {
  const Progress* progress = nullptr;  // null: never recorded
  std::uint64_t ticket = 0;
  bool reached() const { return progress == nullptr || progress->reached(ticket); }
};

class HostStream : public Stream {
 public:
  // Destroy streams before anything that their tasks use. Unfinished work is dropped and its context fails.
  explicit HostStream(StreamGroup& group) : group_(group), progress_(group.add_stream()) {}
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  // Enqueues a task. Throws the first failure of the context's work on any stream.
  virtual void submit(const Task& task) = 0;

  void record(Event& event) override;
  void wait(Event& event) override;
  void label(std::size_t label) override { label_ = static_cast<std::uint8_t>(label); }
  void detail(std::uint64_t detail) override { detail_ = detail; }
  void trace(TraceRing* ring) override { trace_ = ring; }
  void copy(void* dst, const void* src, std::size_t bytes) override;
  void download(void* dst, const void* src, std::size_t bytes) override;
  void upload(void* dst, const void* src, std::size_t bytes) override;

 protected:
  // For destructors: fails the context if work is unfinished.
  void drop_unfinished() noexcept;

  StreamGroup& group_;
  Progress& progress_;
  std::uint64_t issued_ = 0;  // tasks enqueued so far
  std::uint8_t label_ = 0;
  std::uint64_t detail_ = 0;
  TraceRing* trace_ = nullptr;
};

}  // namespace dp::kernels
