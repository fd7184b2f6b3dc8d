#include "kernels/device/host/host_context.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "kernels/device/host/cores.h"
#include "kernels/device/host/memory.h"
#include "kernels/device/host/spin.h"
#include "kernels/op_args.h"

namespace dp::kernels {
namespace {

struct OpCall {
  HostOp* op;
  void* args[kMaxOpArgs];
  std::size_t count;
  void* workspace;
  bool operator()() {
    op->execute({args, count}, workspace);
    return true;
  }
};

struct CopyCall {
  void* dst;
  const void* src;
  std::size_t bytes;
  bool operator()() {
    std::memcpy(dst, src, bytes);
    return true;
  }
};

struct UploadCall {
  void* dst;
  std::size_t bytes;
  unsigned char source[kMaxUploadBytes];
  bool operator()() {
    std::memcpy(dst, source, bytes);
    return true;
  }
};

struct WaitCall {
  const Progress* progress;
  std::uint64_t ticket;
  bool operator()() { return progress->reached(ticket); }
};

static_assert(sizeof(OpCall) <= Task::kMaxBytes && sizeof(UploadCall) <= Task::kMaxBytes);

}  // namespace

void StreamGroup::fail(std::exception_ptr failure) noexcept {
  const std::lock_guard lock(mutex_);
  if (failed()) return;
  failure_ = std::move(failure);
  for (Halted* const helper : helpers_) helper->halt();
  failed_.store(true, std::memory_order_release);
}

void StreamGroup::add(Halted& helper) {
  const std::lock_guard lock(mutex_);
  helpers_.push_back(&helper);
}

void StreamGroup::remove(Halted& helper) {
  const std::lock_guard lock(mutex_);
  std::erase(helpers_, &helper);
}

void HostStream::record(Event& event) {
  auto& recorded = static_cast<HostEvent&>(event);
  recorded.progress = &progress_;
  recorded.ticket = issued_;
}

void HostStream::wait(Event& event) {
  const auto& recorded = static_cast<const HostEvent&>(event);
  if (recorded.progress == nullptr || recorded.progress == &progress_) return;
  Task wait(WaitCall{recorded.progress, recorded.ticket});
  wait.waits_for_event = true;
  submit(wait);
}

void HostStream::copy(void* dst, const void* src, std::size_t bytes) {
  if (bytes > 0 && dst != src) submit(Task(CopyCall{dst, src, bytes}));
}

void HostStream::download(void* dst, const void* src, std::size_t bytes) {
  synchronize();
  if (bytes > 0) std::memcpy(dst, src, bytes);
}

void HostStream::upload(void* dst, const void* src, std::size_t bytes) {
  if (bytes > kMaxUploadBytes)
    throw Error(ErrorCode::usage, "an upload of " + std::to_string(bytes) + " bytes exceeds the limit of " +
                                      std::to_string(kMaxUploadBytes) + "; use a copy instead");
  UploadCall call;
  call.dst = dst;
  call.bytes = bytes;
  std::memcpy(call.source, src, bytes);
  submit(Task(call));
}

void HostStream::drop_unfinished() noexcept {
  if (progress_.reached(issued_)) return;
  group_.fail(std::make_exception_ptr(Error(ErrorCode::usage, "a stream was destroyed before its work was done")));
}

void HostOp::run(Stream& stream, std::span<void* const> args, void* workspace) {
  if (args.size() > kMaxOpArgs)
    throw Error(ErrorCode::usage,
                "an op takes at most " + std::to_string(kMaxOpArgs) + " arguments, not " + std::to_string(args.size()));
  OpCall call;
  call.op = this;
  call.count = args.size();
  call.workspace = workspace;
  std::copy(args.begin(), args.end(), call.args);
  static_cast<HostStream&>(stream).submit(Task(call));
}

bool InlineStreams::poll() {
  if (queued_ == 0) return false;
  if (group_.aborted()) fail(std::make_exception_ptr(Aborted()));
  bool progress = false;
  for (InlineStream* stream : streams_) progress |= stream->advance();
  return progress;
}

template <typename Done>
void InlineStreams::spin_until(Done done) {
  Spinner spinner;
  bool said = false;
  while (!done()) {
    if (poll()) {
      spinner.progressed();
      said = false;
      continue;
    }
    if (!said) say_waiting();
    said = true;
    spinner.wait();
  }
  group_.say_working();
}

// Reports the first blocked task that waits for another replica, not just for an event of another stream.
void InlineStreams::say_waiting() {
  for (InlineStream* const stream : streams_) {
    if (stream->queued() == 0) continue;
    const Task& head = stream->slot(stream->done());
    if (!head.waits_for_event) return group_.say_waiting(head.label, head.detail);
  }
}

void InlineStreams::work_off() {
  group_.rethrow_if_failed();
  spin_until([&] { return queued_ == 0; });
}

void InlineStreams::fail(std::exception_ptr failure) {
  group_.fail(failure);
  for (InlineStream* stream : streams_) stream->drop_queue();
  std::rethrow_exception(failure);
}

InlineStream::InlineStream(StreamGroup& group, InlineStreams& siblings)
    : HostStream(group), siblings_(siblings), queue_(std::make_unique<Task[]>(kQueuedTasks)) {
  siblings_.streams_.push_back(this);
}

InlineStream::~InlineStream() {
  drop_unfinished();
  drop_queue();
  std::erase(siblings_.streams_, this);
}

void InlineStream::submit(const Task& task) {
  group_.rethrow_if_failed();
  siblings_.poll();
  if (queued() == 0) {
    Task now = task;
    tag(now);
    const bool done = attempt(now);
    ++issued_;
    if (done) {
      count_done();
    } else {
      slot(issued_ - 1) = now;
      ++siblings_.queued_;
    }
    return;
  }
  siblings_.spin_until([&] { return queued() < kQueuedTasks; });
  Task& queued_task = slot(issued_++);
  queued_task = task;
  tag(queued_task);
  ++siblings_.queued_;
}

void InlineStream::synchronize() {
  group_.rethrow_if_failed();
  siblings_.poll();
  siblings_.spin_until([&] { return queued() == 0; });
}

void InlineStream::synchronize(Event& event) {
  const auto& recorded = static_cast<const HostEvent&>(event);
  group_.rethrow_if_failed();
  siblings_.spin_until([&] { return recorded.reached(); });
}

bool InlineStream::advance() {
  bool progress = false;
  while (queued() > 0 && attempt(slot(done()))) {
    count_done();
    --siblings_.queued_;
    progress = true;
  }
  return progress;
}

bool InlineStream::attempt(Task& task) {
  // An attempt that has nothing to do yet returns at once. Its time is negligible and counts as work.
  const std::int64_t start = trace_clock();
  try {
    const bool done = task();
    const std::int64_t end = trace_clock();
    siblings_.seconds_[task.label] += static_cast<double>(end - start) * 1e-9;
    if (trace_ == nullptr) return done;
    if (task.begin == 0) task.begin = start;
    if (done && !task.waits_for_event) note(task, end);
    return done;
  } catch (...) {
    siblings_.fail(std::current_exception());
  }
}

void InlineStream::note(const Task& task, std::int64_t end) {
  trace_->add({task.begin, end, task.detail, trace_->take_bytes(), task.label});
}

void InlineStream::drop_queue() noexcept {
  siblings_.queued_ -= queued();
  progress_.done.store(issued_, std::memory_order_release);
}

namespace {

constexpr int kPauses = 50;         // there are more threads than cores in this mode
constexpr int kLongestDelay = 200;  // microseconds

class Delays {
 public:
  explicit Delays(std::uint64_t seed) : state_(seed) {}
  // 0 in half of the cases, else random up to kLongestDelay.
  std::chrono::microseconds next() {
    state_ += 0x9e3779b97f4a7c15u;  // splitmix64
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return std::chrono::microseconds((z & 1) != 0 ? 0 : (z >> 1) % (kLongestDelay + 1));
  }

 private:
  std::uint64_t state_;
};

}  // namespace

ThreadedStream::ThreadedStream(StreamGroup& group, std::uint64_t seed, int threads)
    : HostStream(group), queue_(std::make_unique<Task[]>(kQueuedTasks)) {
  thread_ = std::thread([this, seed, threads] { run(seed, threads); });
}

ThreadedStream::~ThreadedStream() {
  drop_unfinished();
  stop_.store(true, std::memory_order_release);
  thread_.join();
  progress_.done.store(issued_, std::memory_order_release);
}

void ThreadedStream::submit(const Task& task) {
  group_.rethrow_if_failed();
  Spinner spinner(kPauses);
  while (issued_ - seen_done_ == kQueuedTasks) {
    seen_done_ = progress_.done.load(std::memory_order_acquire);
    spinner.wait();
  }
  queue_[issued_ % kQueuedTasks] = task;
  published_.store(++issued_, std::memory_order_release);
}

void ThreadedStream::synchronize() {
  Spinner spinner(kPauses);
  while (!progress_.reached(issued_)) spinner.wait();  // also ends after an abort: the thread skips the remaining tasks
  group_.rethrow_if_failed();
}

void ThreadedStream::synchronize(Event& event) {
  const auto& recorded = static_cast<const HostEvent&>(event);
  Spinner spinner(kPauses);
  while (!recorded.reached()) spinner.wait();
  group_.rethrow_if_failed();
}

void ThreadedStream::run(std::uint64_t seed, int threads) {
  unpin_current_thread();
  omp_set_dynamic(0);
  omp_set_num_threads(threads);
  Delays delays(seed);
  for (std::uint64_t number = 0;; ++number) {
    while (published_.load(std::memory_order_acquire) == number) {
      if (stop_.load(std::memory_order_acquire)) return;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    const auto delay = delays.next();
    if (delay.count() > 0 && !group_.failed()) std::this_thread::sleep_for(delay);
    finish(queue_[number % kQueuedTasks]);
    progress_.done.store(number + 1, std::memory_order_release);
  }
}

void ThreadedStream::finish(Task& task) {
  Spinner spinner(kPauses);
  try {
    while (!group_.failed()) {
      if (group_.aborted()) throw Aborted();
      if (task()) return;
      spinner.wait();
    }
  } catch (...) {
    group_.fail(std::current_exception());
  }
}

namespace {

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> made{0};
  return ++made;
}

// OpenMP ends the process if it cannot start its threads. Hence start as many std::threads first as a test. Then start
// the team, which stays with the calling thread.
void start_team(int members) {
  static std::mutex one_at_a_time;
  const std::scoped_lock lock(one_at_a_time);
  std::atomic<bool> done{false};
  std::vector<std::thread> trial;
  std::string refused;
  try {
    while (static_cast<int>(trial.size()) < members - 1) trial.emplace_back([&] { done.wait(false); });
    require_address_space(0);
  } catch (const std::system_error& error) {
    refused = "only " + std::to_string(trial.size() + 1) + " of the " + std::to_string(members) +
              " threads of a replica could be started (" + error.code().message() +
              "); use fewer threads or replicas, or raise ulimit -u and -v";
  } catch (const Error& error) {
    refused = error.what();
  }
  done.store(true);
  done.notify_all();
  for (std::thread& thread : trial) thread.join();
  if (!refused.empty()) throw Error(ErrorCode::device, refused);
  start_current_team(members);
}

}  // namespace

HostContext::HostContext(Device device, const ContextOptions& options)
    : device_(device),
      options_(options),
      stacks_(std::max(options.threads, 1) - 1),
      id_(next_id()),
      group_(options.abort),
      inline_streams_(group_) {
  if (options.threads < 1) throw Error(ErrorCode::usage, "a replica needs at least one thread");
  if (!options.cores.empty() && options.cores.size() != static_cast<std::size_t>(options.threads))
    throw Error(ErrorCode::usage, "a replica of " + std::to_string(options.threads) + " threads cannot be pinned to " +
                                      std::to_string(options.cores.size()) + " cores; give one core per thread");
}

void HostContext::bind_thread() {
  static thread_local std::uint64_t bound = 0;
  if (bound == id_) return;
  omp_set_dynamic(0);
  omp_set_num_threads(options_.threads);
  if (options_.threads > 1) start_team(options_.threads);
  pin_current_team(options_.cores);
  bound = id_;
}

std::unique_ptr<Buffer> HostContext::allocate(std::size_t bytes) { return allocate_host(bytes); }

std::unique_ptr<Buffer> HostContext::allocate_for_peers(std::size_t bytes) {
  return options_.peer_processes ? allocate_shared(bytes) : allocate_host(bytes);
}

std::unique_ptr<Stream> HostContext::make_stream(StreamUse) {
  ++streams_made_;
  if (!options_.threaded_streams) return std::make_unique<InlineStream>(group_, inline_streams_);
  return std::make_unique<ThreadedStream>(group_, options_.delay_seed * 0x10001 + streams_made_, options_.threads);
}

std::unique_ptr<Event> HostContext::make_event() { return std::make_unique<HostEvent>(); }

bool HostContext::idle() {
  // In threaded mode another thread may still run work. Only inline streams can confirm that all work is done.
  return !options_.threaded_streams && inline_streams_.idle();
}

void HostContext::flush() {
  if (options_.threaded_streams)
    group_.rethrow_if_failed();
  else
    inline_streams_.work_off();
}

}  // namespace dp::kernels
