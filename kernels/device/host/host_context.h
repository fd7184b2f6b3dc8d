// Streams, contexts and ops of backends that use host memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/device/backend.h"
#include "kernels/device/host/memory.h"

namespace dp::kernels {

// Streams of host backends: inline for production, threaded for tests.

// A task in a stream's queue: a small function object, stored in place so that queueing allocates nothing.
class Task {
 public:
  static constexpr std::size_t kMaxBytes = 288;

  Task() = default;
  // Copies `call`. Each invocation of the copy does what is possible now, without blocking, and returns whether all
  // work is done. The stream repeats it, with the state it left, until it returns true.
  template <typename Call>
  explicit Task(const Call& call)
      : invoke_([](void* stored) { return (*static_cast<Call*>(stored))(); }), bytes_(sizeof(Call)) {
    static_assert(sizeof(Call) <= kMaxBytes, "the call does not fit in a task");
    static_assert(alignof(Call) <= alignof(std::max_align_t));
    static_assert(std::is_trivially_copyable_v<Call> && std::is_trivially_destructible_v<Call>);
    ::new (static_cast<void*>(storage_)) Call(call);
  }
  Task(const Task& other) { *this = other; }
  Task& operator=(const Task& other) {
    invoke_ = other.invoke_;
    bytes_ = other.bytes_;
    label = other.label;
    waits_for_event = other.waits_for_event;
    detail = other.detail;
    begin = other.begin;
    std::memcpy(storage_, other.storage_, bytes_);
    return *this;
  }

  bool operator()() { return invoke_(storage_); }

  std::uint8_t label = 0;        // label of its time, see Stream::label
  bool waits_for_event = false;  // true: the task only waits for an event
  std::uint64_t detail = 0;      // see Stream::detail
  std::int64_t begin = 0;        // traced streams: trace_clock() at the first attempt; 0: none yet

 private:
  bool (*invoke_)(void*) = nullptr;
  std::size_t bytes_ = 0;
  alignas(std::max_align_t) unsigned char storage_[kMaxBytes];
};

// State shared by the streams of one context: the progress of each, the abort flag, and the first failure.

// The number of finished tasks of a stream; tasks finish in order. Outlives the stream, because events refer to it.
struct Progress {
  alignas(64) std::atomic<std::uint64_t> done{0};
  bool reached(std::uint64_t ticket) const { return done.load(std::memory_order_acquire) >= ticket; }
};

// A helper that accesses a context's memory outside its streams, e.g. a CommunicationThread.
class Halted {
 public:
  virtual ~Halted() = default;
  virtual void halt() noexcept = 0;  // returns when the helper has stopped for good
};

class StreamGroup {
 public:
  explicit StreamGroup(AbortFlag* abort) : abort_(abort) {}
  StreamGroup(const StreamGroup&) = delete;
  StreamGroup& operator=(const StreamGroup&) = delete;

  Progress& add_stream() { return progress_.emplace_back(); }
  // Registers a helper. The first failure halts it before failed() becomes true.
  void add(Halted& helper);
  void remove(Halted& helper);

  const AbortFlag* abort_flag() const { return abort_; }

  // Written by the streams' thread; stream_progress() reads it from any thread.
  void say_waiting(std::size_t label, std::uint64_t detail) {
    waiting_.store(detail << 8 | label << 1 | 1, std::memory_order_relaxed);
  }
  void say_working() { waiting_.store(0, std::memory_order_relaxed); }
  StreamProgress stream_progress() const {
    const std::uint64_t waiting = waiting_.load(std::memory_order_relaxed);
    StreamProgress now{0, (waiting & 1) != 0, (waiting & 0xff) >> 1, waiting >> 8};
    for (const Progress& progress : progress_) now.count += progress.done.load(std::memory_order_relaxed);
    return now;
  }

  bool aborted() const { return abort_ != nullptr && abort_->load(std::memory_order_acquire); }

  // After a failure no stream of the context runs another task, and every call on a stream rethrows the first failure.
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  void fail(std::exception_ptr failure) noexcept;
  void rethrow_if_failed() const {
    if (failed()) std::rethrow_exception(failure_);
  }

 private:
  AbortFlag* abort_;
  std::deque<Progress> progress_;
  std::atomic<std::uint64_t> waiting_{0};  // detail << 8 | label << 1 | 1; 0: not waiting
  std::atomic<bool> failed_{false};
  std::mutex mutex_;  // for fail(), add() and remove()
  std::vector<Halted*> helpers_;
  std::exception_ptr failure_;  // written once, before failed_
};

// Streams and events of host backends. An event is a stream's progress counter and a ticket. It is reached when that
// many tasks of the stream are done.
//
// InlineStream runs work in the calling thread and is used in production. ThreadedStream has one thread per stream and
// adds random delays; tests use it.

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

// Streams that run work in the thread that enqueues it, immediately if possible. A task that must wait for another rank
// or an event is queued, with all later tasks of its stream. Each later call on any stream of the context retries the
// queues (docs/decisions/0001).

class InlineStream;

// The streams of one context. Used by the context's thread only.
class InlineStreams {
 public:
  explicit InlineStreams(StreamGroup& group) : group_(group) {}

  // Runs the ready tasks at the head of every queue once. Returns true if a task finished.
  bool poll();
  // Returns when every queue is empty.
  void work_off();
  bool idle() const { return queued_ == 0; }
  LabelSeconds take_seconds() { return std::exchange(seconds_, {}); }

 private:
  friend class InlineStream;
  template <typename Done>
  void spin_until(Done done);
  void say_waiting();
  // Fails the context, drops all queues and throws.
  [[noreturn]] void fail(std::exception_ptr failure);

  StreamGroup& group_;
  std::vector<InlineStream*> streams_;
  std::size_t queued_ = 0;  // tasks in all queues
  LabelSeconds seconds_{};
};

class InlineStream final : public HostStream {
 public:
  InlineStream(StreamGroup& group, InlineStreams& siblings);
  ~InlineStream() override;

  void submit(const Task& task) override;
  void synchronize() override;
  void synchronize(Event& event) override;

 private:
  friend class InlineStreams;
  bool advance();            // runs ready tasks from the head of the queue; true if a task finished
  bool attempt(Task& task);  // calls the task once; an exception fails the context
  void tag(Task& task) const {
    task.label = label_;
    task.detail = detail_;
  }
  void drop_queue() noexcept;
  void note(const Task& task, std::int64_t end);  // adds a span to the trace
  std::uint64_t done() const { return progress_.done.load(std::memory_order_relaxed); }
  void count_done() { progress_.done.store(done() + 1, std::memory_order_release); }
  std::size_t queued() const { return static_cast<std::size_t>(issued_ - done()); }
  Task& slot(std::uint64_t number) { return queue_[number % kQueuedTasks]; }

  InlineStreams& siblings_;
  std::unique_ptr<Task[]> queue_;  // ring buffer: task n, from done() to issued_ - 1, is in slot(n)
};

// Streams for tests. Each stream runs its tasks on its own thread and delays some of them, so that a missing event wait
// causes a wrong result or a ThreadSanitizer report. The two threads synchronise only through atomics that the
// semantics of streams imply: enqueueing happens before the task, a task before its event and before synchronize().
class ThreadedStream final : public HostStream {
 public:
  // `seed` determines the delays. `threads` is the number of threads that an op may use.
  ThreadedStream(StreamGroup& group, std::uint64_t seed, int threads);
  ~ThreadedStream() override;

  void submit(const Task& task) override;
  void synchronize() override;
  void synchronize(Event& event) override;

 private:
  void run(std::uint64_t seed, int threads);
  void finish(Task& task);  // returns when the task is done or the context has failed

  std::unique_ptr<Task[]> queue_;            // ring buffer: task n is in slot n % kQueuedTasks
  std::uint64_t seen_done_ = 0;              // the owner's lower bound of the finished tasks
  std::atomic<std::uint64_t> published_{0};  // number of tasks that the thread may run
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// Contexts and ops of backends that use host memory.

// An op of a backend whose device memory is host memory.
class HostOp : public Op {
 public:
  // Runs the op on the stream's thread and returns when it is done. Allocates nothing.
  virtual void execute(std::span<void* const> args, void* workspace) = 0;

  void run(Stream& stream, std::span<void* const> args,
           void* workspace) final;  // enqueues execute()
  const std::vector<TensorDesc>& tensors() const override { return tensors_; }
  std::string implementation() const override { return "plain"; }
  // Whether this is a slow substitute, so that another layout may have a faster op.
  virtual bool is_fallback() const { return false; }

 protected:
  std::vector<TensorDesc> tensors_;  // set by the derived class's constructor
};

// Common base of the contexts of host backends. Derived classes add ops, types and layouts.
class HostContext : public Context {
 public:
  // Error(usage) if options.threads < 1, or if options.cores is neither empty nor one core per thread.
  HostContext(Device device, const ContextOptions& options);

  Device device() const override { return device_; }
  bool host_accessible() const override { return !options_.discrete_memory; }
  void bind_thread() override;
  bool fuses(const OpDesc&) const override { return options_.norm_fusion == NormFusion::always; }
  NormFusion norm_fusion() const override {
    return options_.norm_fusion == NormFusion::always ? NormFusion::always : NormFusion::never;
  }
  std::unique_ptr<Buffer> allocate(std::size_t bytes) override;
  std::unique_ptr<Buffer> allocate_for_peers(std::size_t bytes) override;
  // Destroy streams before their context.
  std::unique_ptr<Stream> make_stream(StreamUse use = StreamUse::work) override;
  std::unique_ptr<Event> make_event() override;
  void flush() override;
  bool idle() override;
  StreamProgress stream_progress() const override { return group_.stream_progress(); }
  LabelSeconds take_seconds() override { return inline_streams_.take_seconds(); }

  const ContextOptions& options() const { return options_; }
  StreamGroup& group() { return group_; }

 private:
  Device device_;
  ContextOptions options_;
  StackReserve stacks_;
  std::uint64_t id_;  // unique in the process, never reused
  std::uint64_t streams_made_ = 0;
  StreamGroup group_;
  InlineStreams inline_streams_;
};

}  // namespace dp::kernels
