#include "simulated_cuda/emulator/spin_watch.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "simulated_cuda/runtime/quiet_lock.h"
#include "simulated_cuda/simulation.h"

namespace dp::simt {
namespace {

// A thread that runs kernels, registered while this object exists.
struct Watched {
  Watched();
  ~Watched();

  std::atomic<const char*> kernel{nullptr};  // null: no kernel runs
  std::atomic<int> device{0};
  const std::atomic<unsigned>* progress = &progress_of_kernel;
  clockid_t clock{};
  // Used only by the watching thread.
  unsigned seen = 0;
  double since = 0;
};

struct Watch {
  std::mutex mutex;
  std::vector<Watched*> threads;
};
Watch& watch() {
  static auto& one = *new Watch;
  return one;
}

double seconds_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The message for a kernel without progress; empty if it makes progress.
std::string check(Watched& thread) {
  const char* const kernel = thread.kernel;
  const unsigned progress = thread.progress->load(std::memory_order_relaxed);
  const double now = seconds_of(thread.clock);
  if (kernel == nullptr || progress != thread.seen) {
    thread.seen = progress;
    thread.since = now;
    return {};
  }
  if (now - thread.since < simulation().spin_seconds) return {};
  char text[320];
  std::snprintf(
      text, sizeof text,
      "simulated CUDA: kernel %s on cuda:%d does not end: for %.1f s of processor time none of its threads has "
      "returned or passed a barrier; do its threads or blocks wait for each other?\n",
      kernel, thread.device.load(), now - thread.since);
  return text;
}

std::string check_all() {
  const QuietLock lock(watch().mutex);
  for (Watched* const thread : watch().threads)
    if (std::string text = check(*thread); !text.empty()) return text;
  return {};
}

[[noreturn]] void watch_for_ever() {
  for (;;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const std::string text = check_all();
    if (text.empty()) continue;
    std::fputs(text.c_str(), stderr);
    std::fflush(nullptr);
    constexpr int kNeverEnds = 99;
    _exit(kNeverEnds);
  }
}

Watched::Watched() {
  pthread_getcpuclockid(pthread_self(), &clock);
  const QuietLock lock(watch().mutex);
  static const bool started = [] {
    std::thread(watch_for_ever).detach();
    return true;
  }();
  (void)started;
  watch().threads.push_back(this);
}

Watched::~Watched() {
  const QuietLock lock(watch().mutex);
  std::erase(watch().threads, this);
}

Watched& this_thread() {
  static thread_local Watched one;
  return one;
}

}  // namespace

SpinWatch::SpinWatch(const char* kernel, int device) {
  kernel_progress();
  this_thread().device = device;
  this_thread().kernel = kernel;
}

SpinWatch::~SpinWatch() { this_thread().kernel = nullptr; }

}  // namespace dp::simt
