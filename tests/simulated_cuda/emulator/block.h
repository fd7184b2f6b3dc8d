// Runs the threads of one block. Each thread is a fiber that runs until it waits at a barrier or for other lanes of its
// warp. If several blocks of a grid are resident they take turns: a block yields after barriers, at fences and at
// atomic updates of global memory.
#pragma once

#include <vector_types.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "simulated_cuda/emulator/async_copies.h"
#include "simulated_cuda/emulator/context.h"
#include "simulated_cuda/emulator/grid.h"
#include "simulated_cuda/emulator/sanitizer.h"
#include "simulated_cuda/emulator/shared_memory.h"
#include "simulated_cuda/emulator/site.h"
#include "simulated_cuda/emulator/wgmma_queue.h"
#include "simulated_cuda/simulation.h"

namespace dp::simt {

inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kFullWarp = ~0u;

struct FiberStack {
  // `number`: index among the block's stacks. Each stack top has another offset in its page, to avoid cache conflicts.
  explicit FiberStack(std::size_t number);
  ~FiberStack();
  FiberStack(const FiberStack&) = delete;
  FiberStack& operator=(const FiberStack&) = delete;

  void prepare(void (*entry)());
  void* usable() const;  // above the guard page

  static constexpr std::size_t kBytes = (kAddressSanitizer ? 256 : 64) * 1024;

  Context context;
  char* memory;
  std::size_t unused_top;
};

class Block {
 public:
  static constexpr unsigned kMaxThreads = 1024;

  Block() = default;
  ~Block() {
    release_context(caller_);
    release_context(abandoned_);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  // Starts block `number` of the grid. `slot`: its index among the resident blocks. `shares`: whether there are others.
  void start(const Grid& grid, unsigned number, unsigned slot, bool shares);
  // Runs the block until it ends or yields to another block. Returns whether it has ended.
  bool resume();
  const Failure& failure() const { return failure_; }  // valid after the end
  void abandon();                                      // the block is never resumed

  // For the primitives. Called on a fiber.
  void barrier(Site site);
  // An operation of the lanes in `mask`: each passes its arguments, and the last to arrive runs `combine` on all of
  // them.
  using Combine = void (*)(void* const* arguments, unsigned mask, Block& block, Site site);
  void collective(unsigned mask, void* arguments, Combine combine, Site site);
  void warp_fence(unsigned mask);
  void yield();  // lets other resident blocks take their turns
  [[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 2, 3)));
  // Like fail(), for an invalid or misaligned address. `code`: address of the access.
  [[noreturn]] void fail_address(const char* text, const void* code, cudaError_t error = cudaErrorIllegalAddress);

  SharedMemory& shared() { return shared_; }
  void* shared_array(const void* key, std::size_t bytes, const char* name);
  AsyncCopies& async_copies() { return current_->copies; }
  bool copies_late();  // whether the next cp.async or wgmma takes effect at its wait
  WgmmaQueue& wgmma_queue() { return wgmma_queue(current_->linear / kWarp); }
  WgmmaQueue& wgmma_queue(unsigned warp) { return warps_[warp].products; }
  void fence_copies() { current_->copies.fence(); }
  void check_fenced(Site site);  // fails if a thread lacks fence.proxy.async after its copies
  unsigned thread() const { return current_->linear; }
  unsigned number() const { return number_; }
  unsigned slot() const { return slot_; }
  unsigned epoch() const { return epoch_; }                                            // barriers so far
  unsigned warp_epoch(unsigned thread) const { return warps_[thread / kWarp].epoch; }  // __syncwarp so far
  const Grid& grid() const { return *grid_; }
  bool on_fiber() const { return current_ != nullptr; }
  bool on_current_stack(const void* address) const {
    return address >= current_stack_->memory && address < current_stack_->memory + FiberStack::kBytes;
  }
  bool is_stack(const void* address) const;  // whether it is in the guard page below a fiber's stack

 private:
  enum class State : std::uint8_t { fresh, ready, in_warp_operation, at_barrier, done };
  struct Thread {
    FiberStack* stack;
    uint3 index;
    unsigned linear;
    State state;
    Site site;
    AsyncCopies copies;
  };
  struct WarpCollective {
    unsigned mask, arrived;
    Combine combine;
    Site site;
    void* arguments[kWarp];
  };
  struct Warp {
    unsigned ready, alive, epoch, busy;  // bit sets of lanes; busy: of collectives
    WarpCollective collectives[kWarp];   // indexed by the lowest lane of the mask
    WgmmaQueue products;
  };

  static void fiber_main();
  void start_threads(dim3 block);
  void go(Context& from, Context& to, bool for_good);
  void arrived(Context* self);
  void resume_next(Context& from, bool for_good);
  void wait(State state, Site site);
  Thread* pick();
  unsigned choose(unsigned set);
  unsigned draw();
  void wake(unsigned warp, unsigned lanes);
  void forget_ready(unsigned thread);
  void release_barrier();
  FiberStack* take_stack();
  void reclaim_stacks();
  unsigned lanes_of(unsigned warp) const;
  [[noreturn]] void leave();
  [[noreturn]] void diagnose();

  Context caller_;
  Context abandoned_;  // of a fiber that failed; never resumed
  std::vector<std::unique_ptr<FiberStack>> stacks_;
  std::vector<FiberStack*> free_stacks_;
  SharedMemory shared_;
  std::array<Thread, kMaxThreads> threads_;
  std::array<Warp, kMaxThreads / kWarp> warps_;

  const Grid* grid_ = nullptr;
  unsigned number_ = 0, slot_ = 0, thread_count_ = 0, warp_count_ = 0;
  bool shares_ = false, yielded_ = false;
  ThreadOrder order_ = ThreadOrder::forward;
  uint3 index_{};
  unsigned done_ = 0, at_barrier_ = 0, epoch_ = 0;
  unsigned ready_warps_ = 0, current_warp_ = 0;
  unsigned random_ = 1;
  int last_exit_ = -1;
  Site barrier_site_;
  Thread* current_ = nullptr;
  FiberStack* current_stack_ = nullptr;
  Context* came_from_ = nullptr;
  Failure failure_;
  char message_[512];
};

// Of the running thread of the block that runs on this operating system thread.
inline constinit thread_local uint3 thread_index{};
inline constinit thread_local uint3 block_index{};
inline constinit thread_local dim3 block_shape{};
inline constinit thread_local dim3 grid_shape{};
inline constinit thread_local Block* running_block = nullptr;

}  // namespace dp::simt
