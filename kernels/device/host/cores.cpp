#include "kernels/device/host/cores.h"

#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <utility>

#include "dp/error.h"
#include "kernels/device/host/topology.h"

namespace dp::kernels {
namespace {

constexpr int kMaxCores = 8192;

class Mask {
 public:
  Mask() : set_(CPU_ALLOC(kMaxCores)) { CPU_ZERO_S(bytes(), set_); }
  explicit Mask(std::span<const int> cores) : Mask() {
    for (const int core : cores)
      if (core >= 0 && core < kMaxCores) CPU_SET_S(static_cast<std::size_t>(core), bytes(), set_);
  }
  ~Mask() { CPU_FREE(set_); }
  Mask(const Mask&) = delete;
  Mask& operator=(const Mask&) = delete;

  bool apply() const { return sched_setaffinity(0, bytes(), set_) == 0; }  // to the calling thread
  static std::vector<int> current() {
    Mask mask;
    std::vector<int> cores;
    if (sched_getaffinity(0, bytes(), mask.set_) != 0) return cores;
    for (int core = 0; core < kMaxCores; ++core)
      if (CPU_ISSET_S(static_cast<std::size_t>(core), bytes(), mask.set_)) cores.push_back(core);
    return cores;
  }

 private:
  static std::size_t bytes() { return CPU_ALLOC_SIZE(kMaxCores); }
  cpu_set_t* set_;
};

[[noreturn]] void refuse(int core) {
  std::string usable;
  for (const int one : usable_cores()) usable += (usable.empty() ? "" : ",") + std::to_string(one);
  throw Error(ErrorCode::device, "cannot run a thread on core " + std::to_string(core) +
                                     "; the cores available to this process are " + usable);
}

bool pin(int core) { return Mask(std::span(&core, 1)).apply(); }

std::string cause_of_small_team() {
  const auto limit = largest_team();
  return limit ? limit->source : "the cause is unknown; see the OMP_ variables of the environment";
}

thread_local int pinned_members = 0;  // pinned threads of this thread's OpenMP team

}  // namespace

const std::vector<int>& usable_cores() {
  static const std::vector<int> cores = in_spreading_order(host_topology());
  return cores;
}

void pin_current_thread(int core) {
  if (!pin(core)) refuse(core);
}

void start_current_team(int members) {
  const Mask own(Mask::current());
  static std::atomic<int> started{
      0};  // static: ThreadSanitizer does not see OpenMP pass the address of a local variable
  started.store(0);
#pragma omp parallel num_threads(members)
  ++started;
  own.apply();
  if (started.load() != members)
    throw Error(ErrorCode::device, "OpenMP started " + std::to_string(started.load()) + " of the " +
                                       std::to_string(members) + " threads of a replica (" + cause_of_small_team() +
                                       "); use fewer threads per replica");
}

void pin_current_team(std::span<const int> cores) {
  if (cores.empty()) return;
  if (cores.size() == 1) return pin_current_thread(cores[0]);
  const int members = static_cast<int>(cores.size());
  std::atomic<int> refused{-1};
#pragma omp parallel num_threads(members)
  {
    const int core = cores[static_cast<std::size_t>(omp_get_thread_num())];
    if (!pin(core)) refused.store(core, std::memory_order_relaxed);
  }
  pinned_members = members;
  if (refused.load() >= 0) refuse(refused.load());
}

// The thread state that bind_thread changes. OpenMP also keeps its settings per thread.
struct ThreadKeeper::Saved {
  const std::thread::id owner = std::this_thread::get_id();
  const std::vector<int> cores = Mask::current();
  const int threads = omp_get_max_threads(), dynamic = omp_get_dynamic();

  ~Saved() {
    if (std::this_thread::get_id() != owner || cores.empty()) return;
    const Mask mask(cores);
    mask.apply();
    // Without a pinned team this region would start one.
    if (const int members = std::exchange(pinned_members, 0); members > 1) {
#pragma omp parallel num_threads(members)
      mask.apply();
    }
    omp_set_num_threads(threads);
    omp_set_dynamic(dynamic);
  }
};

ThreadKeeper::ThreadKeeper() {
  static thread_local std::weak_ptr<Saved> of_this_thread;
  saved_ = of_this_thread.lock();
  if (saved_ == nullptr) of_this_thread = saved_ = std::make_shared<Saved>();
}

void unpin_current_thread() { Mask(usable_cores()).apply(); }

}  // namespace dp::kernels
