// The controls of the simulated CUDA: what a test sets before it starts, and what it finds out afterwards.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace dp::simt {

inline constexpr int kMaxDevices = 8;

enum class ThreadOrder { forward, reverse, random };  // of the threads of a block, of the blocks, and of their turns
enum class AsyncCopy { eager, lazy, random };         // cp.async: done where it is issued, or where it is waited for
enum class Peer {
  none,
  works,
  corrupts,  // says that it works; what is copied arrives changed
  hangs,     // says that it works; enabling it never returns
};

// How mma adds: as tensor cores of the compute capability were measured to, or one product after the other in float32.
enum class MmaSums { as_measured, in_order };

// A wait that a program lacks: the `number`-th cudaStreamWaitEvent from now on, by a stream of `device`, for an event of that
// device or of another, is left out; then number is 0.
struct LeftOutWait {
  int device = 0;
  bool for_other_device = false;
  int number = 0;
};

// The `number`-th kernel from now on that `device` begins fails as one does that reads where it may not; then number is 0.
struct FailingKernel {
  int device = 0;
  int number = 0;
};

// Changed only while no operation runs. What a control makes fail is no report.
struct Simulation {
  int devices = 1;
  std::size_t device_memory = std::size_t{1} << 30;  // of each device, bytes
  int compute_capability = 90;
  int compiled_for = 90;                    // the compute capability, or of an older device its own
  std::size_t shared_memory_per_block = 0;  // static and dynamic together, bytes; 0: as the compute capability has
  std::size_t l2_cache = 256 * 1024;        // bytes; small, for trials overwrite it before each time they take
  ThreadOrder order = ThreadOrder::forward;
  unsigned resident_blocks = 2;  // of a grid, at most; they take turns
  MmaSums mma_sums = MmaSums::as_measured;
  double spin_seconds = 10;  // of processor time, after which a kernel without progress ends the process
  AsyncCopy async_copy = AsyncCopy::eager;
  unsigned seed = 1;
  bool delays = true;            // operations start late by random times, copies take a while
  bool protect_memory = true;    // host code that touches device memory ends the process
  int fail_allocation = 0;       // the so-many-th cudaMalloc from now on fails, then it is 0 again
  int fail_host_allocation = 0;  // the same for pinned memory
  int fail_capture = 0;          // the so-many-th operation that is captured from now on is refused
  bool fail_begin_capture = false;
  // The so-many-th of these calls from now on fails.
  int fail_instantiate = 0;
  int fail_upload = 0;
  int fail_graph_launch = 0;
  FailingKernel failing_kernel;
  bool log_launches = false;        // for take_launches()
  bool log_blocking_calls = false;  // for take_blocking_calls()
  LeftOutWait left_out_wait;
  std::array<std::array<Peer, kMaxDevices>, kMaxDevices> peers{};  // [from][to]

  void set_peers(Peer peer);               // between all pairs
  std::size_t most_shared_memory() const;  // of a block, when it is asked for
};

Simulation& simulation();

// Back to the defaults, which the environment may change: DP_SIMULATED_GPUS=4, DP_SIMULATED_PEERS=all|none|corrupts|hangs, behind which may
// stand pairs that differ (DP_SIMULATED_PEERS=all,0-1=hangs,2-0=corrupts; from-to),
// DP_SIMULATED_ORDER=forward|reverse|random, DP_SIMULATED_ASYNC_COPY=eager|lazy|random, DP_SIMULATED_SEED=7,
// DP_SIMULATED_RESIDENT_BLOCKS=2, DP_SIMULATED_MMA=as_measured|in_order. Clears the errors of the devices, peer access and reports, and
// frees what is still allocated. All streams must be idle.
void reset();

// What was found wrong since the last call, each once: errors inside kernels, and in a race build races, accesses outside
// any allocation and missing waits. A process that ends without having taken them exits with status 97.
std::vector<std::string> take_reports();

// What exists now.
struct Live {
  std::size_t allocations = 0;
  std::size_t bytes = 0;
  std::size_t pinned = 0;
  std::size_t streams = 0;
  std::size_t urgent_streams = 0;  // of the highest priority
  std::size_t events = 0;
  std::size_t graphs = 0;  // and what has been instantiated of them
};
Live live();

// What each stream was told to do while log_launches was set, in order, by its name: "kernel relu 2x1x1 of 128x1x1, 0 bytes", "a copy of 64
// bytes". What is captured counts at every launch of its graph, on the stream on which it was captured.
std::map<std::string, std::vector<std::string>> take_launches();

// The calls, while log_blocking_calls was set, that may wait for a device or for a lock of the driver, from the first work on that waits
// for another device: "cudaMalloc on cuda:0", "loading kernel relu on cuda:1". To make a graph ready counts where a device works meanwhile.
std::vector<std::string> take_blocking_calls();

bool detects_races();  // whether this program was built with the race detector

}  // namespace dp::simt
