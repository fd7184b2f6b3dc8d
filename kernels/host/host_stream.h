// Streams and events of host backends. An event is a stream and a ticket number of it; reaching it means that so many
// of the stream's tasks are done.
//
// Two kinds of stream follow: inline_stream.h (work runs in the calling thread; the one for real use) and
// threaded_stream.h (a thread per stream and random delays; for tests).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/backend.h"
#include "kernels/host/stream_group.h"
#include "kernels/host/task.h"

namespace dp::kernels {

inline constexpr std::size_t kMaxUploadBytes = 256;
inline constexpr std::size_t kQueuedTasks = 256;  // of one stream; the next one waits

struct HostEvent final : Event {
  const Progress* progress = nullptr;  // null: never recorded
  std::uint64_t ticket = 0;
  bool reached() const { return progress == nullptr || progress->reached(ticket); }
};

class HostStream : public Stream {
 public:
  // Destroy streams before what their tasks use. Work that is not done by then is dropped and its context is dead.
  explicit HostStream(StreamGroup& group) : group_(group), progress_(group.add_stream()) {}
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  // Enqueues. Throws the first failure of the context's work, whichever stream it came from.
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
  // For destructors: what happens to work that will never run.
  void drop_unfinished() noexcept;

  StreamGroup& group_;
  Progress& progress_;
  std::uint64_t issued_ = 0;  // tasks enqueued so far
  std::uint8_t label_ = 0;
  std::uint64_t detail_ = 0;
  TraceRing* trace_ = nullptr;
};

}  // namespace dp::kernels
