// The cores of the process, and the affinity of threads.
#pragma once

#include <memory>
#include <span>
#include <vector>

namespace dp::kernels {

// The cores of process_cores(), in the order of in_spreading_order() (topology.h).
const std::vector<int>& usable_cores();

// Starts the calling thread's OpenMP team, one call at a time in the process. OpenMP may bind its members
// (OMP_PROC_BIND); the calling thread keeps its affinity mask. Error(device) if OpenMP gives a smaller team.
void start_current_team(int members);
// Pins the calling thread to `core`, whatever its previous mask. Error(device) if the kernel refuses the core.
void pin_current_thread(int core);
// Pins the calling thread's OpenMP team of cores.size() threads: member i to cores[i]. Error(device).
void pin_current_team(std::span<const int> cores);
// Saves the calling thread's affinity mask and OpenMP settings. They are restored when the thread destroys its last
// keeper; the mask also for the members of its OpenMP team.
class ThreadKeeper {
 public:
  ThreadKeeper();

 private:
  struct Saved;
  std::shared_ptr<Saved> saved_;
};

// Lets the calling thread run on all usable cores. Threads inherit the mask of their creator, hence loader and helper
// threads call this first.
void unpin_current_thread();

}  // namespace dp::kernels
