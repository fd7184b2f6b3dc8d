#include "kernels/host/threaded_stream.h"

#include <omp.h>

#include <chrono>

#include "kernels/host/cores.h"
#include "kernels/host/spin.h"

namespace dp::kernels {
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

}  // namespace dp::kernels
