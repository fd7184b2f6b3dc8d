#include <sys/mman.h>

#include <new>

#include "simulated_cuda/emulator/block.h"
#include "simulated_cuda/emulator/sanitizer.h"

namespace dp::simt {
namespace {
constexpr std::size_t kGuard = 4096, kLine = 64;
constexpr std::size_t kBytes = FiberStack::kBytes;
}  // namespace

FiberStack::FiberStack(std::size_t number) : unused_top(number * 13 % (4096 / kLine) * kLine) {
  void* const pages = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  memory = static_cast<char*>(pages);
  mprotect(memory, kGuard, PROT_NONE);
}

FiberStack::~FiberStack() { munmap(memory, kBytes); }

void FiberStack::prepare(void (*entry)()) {
  context = {};
  context.low = usable();
  context.bytes = kBytes - kGuard;
  make_context(context, usable(), kBytes - kGuard - unused_top, entry);
}

void* FiberStack::usable() const { return memory + kGuard; }

FiberStack* Block::take_stack() {
  if (free_stacks_.empty()) {
    stacks_.push_back(std::make_unique<FiberStack>(stacks_.size()));
    free_stacks_.reserve(stacks_.capacity());
    free_stacks_.push_back(stacks_.back().get());
  }
  FiberStack* const stack = free_stacks_.back();
  free_stacks_.pop_back();
  stack->prepare(&fiber_main);
  return stack;
}

// After a failure. The fibers on these stacks are abandoned.
void Block::reclaim_stacks() {
  free_stacks_.clear();
  for (const auto& stack : stacks_) {
    unpoison(stack->usable(), kBytes - kGuard);
    free_stacks_.push_back(stack.get());
  }
}

bool Block::is_stack(const void* address) const {
  for (const auto& stack : stacks_)
    if (address >= stack->memory && address < stack->memory + kGuard) return true;
  return false;
}

}  // namespace dp::simt
