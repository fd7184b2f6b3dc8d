// Which cores the process may use, and binding threads to them.
#pragma once

#include <memory>
#include <span>
#include <vector>

namespace dp::kernels {

// The cores to spread work over: process_cores(), one core of every physical core first, its siblings after those.
const std::vector<int>& usable_cores();

// Starts the calling thread's OpenMP team. OpenMP may bind its members (OMP_PROC_BIND); the calling thread keeps its mask.
void start_current_team(int members);
// Replaces the calling thread's mask, whatever was inherited. Error(device) when the kernel refuses that core.
void pin_current_thread(int core);
// The same for every thread of the calling thread's OpenMP team of cores.size(): team member i to cores[i].
// Error(device).
void pin_current_team(std::span<const int> cores);
// Keeps the calling thread's mask and OpenMP settings. When the last keeper of a thread is destroyed, by that thread, they
// come back, the mask for the members of its team as well.
class ThreadKeeper {
 public:
  ThreadKeeper();

 private:
  struct Saved;
  std::shared_ptr<Saved> saved_;
};

// Threads inherit the mask of the thread that makes them; a loader or helper thread calls this first.
void unpin_current_thread();

}  // namespace dp::kernels
