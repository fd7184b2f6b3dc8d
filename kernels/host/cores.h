// Which cores the process may use, and binding threads to them.
#pragma once

#include <span>
#include <vector>

namespace dp::kernels {

// The cores to spread work over, found once. They are those the process was started with (taskset, cpuset); a mask of a
// single core is taken for the work of a binding tool (OMP_PROC_BIND, mpirun) and widened to all the kernel permits.
// One core of every physical core comes first, its siblings after those.
const std::vector<int>& usable_cores();

// Replaces the calling thread's mask, whatever was inherited. Error(device) when the kernel refuses that core.
void pin_current_thread(int core);
// The same for every thread of the calling thread's OpenMP team of cores.size(): team member i to cores[i].
// Error(device).
void pin_current_team(std::span<const int> cores);
// Threads inherit the mask of the thread that makes them; a loader or helper thread calls this first.
void unpin_current_thread();

}  // namespace dp::kernels
