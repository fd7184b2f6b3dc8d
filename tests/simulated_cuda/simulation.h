// Controls of the simulated CUDA: settings that a test makes before it starts, and results that it reads afterwards.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "support/nth_failure.h"

namespace dp::simt {

inline constexpr int kMaxDevices = 8;

enum class ThreadOrder { forward, reverse, random };  // order of a block's threads, of blocks, and of turns
enum class AsyncCopy { eager, lazy, random };         // a cp.async copies when it is issued, or when it is waited for
enum class Peer {
  none,
  works,
  corrupts,  // reports peer access; copied data arrives changed
  hangs,     // reports peer access; enabling it never returns
};

// How mma accumulates: as measured on tensor cores of the compute capability, or one product after the other in
// float32.
enum class MmaSums { as_measured, in_order };

// Fault injection: skips the `number`-th cudaStreamWaitEvent from now on of a stream of `device` for an event of the
// same device, or of another one if for_other_device. Then number is reset to 0.
struct LeftOutWait {
  int device = 0;
  bool for_other_device = false;
  int number = 0;
};

// Fault injection: the `number`-th kernel from now on that starts on `device` fails with an illegal address. Then
// number is reset to 0.
struct FailingKernel {
  int device = 0;
  int number = 0;
};

// Change it only while no operation runs. Injected failures are not reported.
struct Simulation {
  int devices = 1;
  std::vector<int> visible;                          // the number of each device, if CUDA_VISIBLE_DEVICES has UUIDs
  std::size_t device_memory = std::size_t{1} << 30;  // per device, in bytes
  int compute_capability = 90;
  int compiled_for = 90;                    // of the kernels' code; at most the device's is used
  std::size_t shared_memory_per_block = 0;  // static plus dynamic, bytes; 0: set by compute capability
  std::size_t l2_cache = 256 * 1024;        // bytes; small, because tuning trials overwrite it before each timed run
  ThreadOrder order = ThreadOrder::forward;
  unsigned resident_blocks = 2;  // at most, per grid; they take turns
  MmaSums mma_sums = MmaSums::as_measured;
  double spin_seconds = 10;  // CPU time after which a kernel without progress ends the process
  AsyncCopy async_copy = AsyncCopy::eager;
  unsigned seed = 1;
  bool delays = true;            // operations start after random delays, and copies take time
  bool protect_memory = true;    // host code that touches device memory ends the process
  int fail_allocation = 0;       // the n-th cudaMalloc from now on fails; then reset to 0
  int fail_host_allocation = 0;  // the same for pinned memory
  int fail_capture = 0;          // the n-th captured operation from now on is refused
  bool fail_begin_capture = false;
  // The n-th of these calls from now on fails.
  int fail_instantiate = 0;
  int fail_upload = 0;
  int fail_graph_launch = 0;
  FailingKernel failing_kernel;
  bool log_launches = false;        // fills take_launches()
  bool log_blocking_calls = false;  // fills take_blocking_calls()
  LeftOutWait left_out_wait;
  std::array<std::array<Peer, kMaxDevices>, kMaxDevices> peers{};  // [from][to]

  void set_peers(Peer peer);               // for all pairs
  std::size_t most_shared_memory() const;  // per block, if the kernel opts in
};

Simulation& simulation();

// Each makes one call fail: CUDA's with cudaErrorUnknown, NCCL's with ncclInternalError. reset() reads
// DP_FAIL=fail:cuda:N and DP_FAIL=fail:nccl:N.
inline dp::test::NthFailure failing_cuda_call, failing_nccl_call;
inline std::atomic<const char*> failed_call{""};  // the function that failed

// Restores the defaults, which environment variables may change:
// DP_SIMULATED_GPUS=4
// DP_SIMULATED_LOST=/tmp/lost, a file with the numbers of lost devices
// CUDA_VISIBLE_DEVICES=GPU-..., UUIDs
// DP_SIMULATED_PEERS=all|none|corrupts|hangs, optionally followed by exceptions from-to (all,0-1=hangs,2-0=corrupts)
// DP_SIMULATED_ORDER=forward|reverse|random
// DP_SIMULATED_ASYNC_COPY=eager|lazy|random
// DP_SIMULATED_SEED=7
// DP_SIMULATED_RESIDENT_BLOCKS=2
// DP_SIMULATED_MMA=as_measured|in_order
// Clears device errors, peer access and reports, and frees all allocations. All streams must be idle.
void reset();

// The distinct errors found since the last call: errors inside kernels and, in a race build, races, accesses outside
// any allocation and missing waits. A process that ends with reports that nobody took exits with status 97.
std::vector<std::string> take_reports();

// Numbers of objects that exist now.
struct Live {
  std::size_t allocations = 0;
  std::size_t bytes = 0;
  std::size_t pinned = 0;
  std::size_t streams = 0;
  std::size_t urgent_streams = 0;  // streams of the highest priority
  std::size_t events = 0;
  std::size_t graphs = 0;  // including instantiated ones
};
Live live();

// What each stream did while log_launches was set, in order, by the stream's name: "kernel relu 2x1x1 of 128x1x1, 0
// bytes", "a copy of 64 bytes". Captured work counts at every launch of its graph, on the stream that captured it.
std::map<std::string, std::vector<std::string>> take_launches();

// The calls made while log_blocking_calls was set that may wait for a device or for a lock of the driver, starting with
// the first enqueued work that waits for another device: "cudaMalloc on cuda:0", "loading kernel relu on cuda:1".
// Preparing a graph counts if a device works at that time.
std::vector<std::string> take_blocking_calls();

bool detects_races();  // whether this program contains the race detector

}  // namespace dp::simt
