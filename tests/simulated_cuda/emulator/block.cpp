#include "simulated_cuda/emulator/block.h"

#include <bit>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "simulated_cuda/emulator/detector.h"
#include "simulated_cuda/emulator/sanitizer.h"
#include "simulated_cuda/emulator/spin_watch.h"
#include "simulated_cuda/simulation.h"

namespace dp::simt {

bool Site::operator==(const Site& other) const {
  return line == other.line && (file == other.file || std::strcmp(file, other.file) == 0);
}

const char* Site::name() const {
  const char* const slash = std::strrchr(file, '/');
  return slash == nullptr ? file : slash + 1;
}

// ---- running a block

void Block::start(const Grid& grid, unsigned number, unsigned slot, bool shares) {
  grid_ = &grid;
  number_ = number;
  slot_ = slot;
  shares_ = shares;
  order_ = simulation().order;
  failure_ = {};
  message_[0] = 0;
  random_ = (simulation().seed * 2654435761u ^ number * 40503u) | 1;
  index_ = {number % grid.grid.x, number / grid.grid.x % grid.grid.y, number / (grid.grid.x * grid.grid.y)};
  start_threads(grid.block);
  shared_.start(grid.shared_bytes, grid.shared_limit);
}

bool Block::resume() {
  Block* const outer = running_block;
  running_block = this;
  block_index = index_;
  if (current_ == nullptr) {
    resume_next(caller_, false);
  } else {
    thread_index = current_->index;
    go(caller_, current_stack_->context, false);
  }
  running_block = outer;
  if (yielded_) {
    yielded_ = false;
    return false;
  }
  current_ = nullptr;
  if (message_[0] != 0) {
    failure_.text = message_;
    reclaim_stacks();
  } else if (const char* const name = shared_.damaged()) {
    failure_.text = "block " + std::to_string(number_) + ": out-of-bounds write to shared memory beside " + name;
  }
  return true;
}

void Block::abandon() {
  current_ = nullptr;
  reclaim_stacks();
}

void Block::yield() {
  if (!shares_) return;
  yielded_ = true;
  go(current_->stack->context, caller_, false);
}

void Block::start_threads(dim3 block) {
  thread_count_ = block.x * block.y * block.z;
  warp_count_ = (thread_count_ + kWarp - 1) / kWarp;
  done_ = at_barrier_ = ready_warps_ = current_warp_ = 0;
  epoch_ = 1;
  last_exit_ = -1;
  uint3 index{};
  for (unsigned i = 0; i < thread_count_; ++i) {
    Thread& thread = threads_[i];
    thread.linear = i;
    thread.state = State::fresh;
    thread.index = index;
    thread.copies.clear();
    if (++index.x < block.x) continue;
    index.x = 0;
    if (++index.y < block.y) continue;
    index.y = 0;
    ++index.z;
  }
  for (unsigned w = 0; w < warp_count_; ++w) {
    Warp& warp = warps_[w];
    warp.alive = lanes_of(w);
    warp.ready = warp.busy = warp.epoch = 0;
    warp.products.clear();
    for (WarpCollective& pending : warp.collectives) pending.arrived = 0;
    wake(w, warp.alive);
  }
}

unsigned Block::lanes_of(unsigned warp) const {
  const unsigned left = thread_count_ - warp * kWarp;
  return left >= kWarp ? kFullWarp : (1u << left) - 1;
}

void Block::fiber_main() {
  Block* const block = running_block;
  FiberStack* const stack = block->current_stack_;
  block->arrived(nullptr);
  for (;;) {
    block->grid_->call(block->grid_->arguments);
    const Thread& self = *block->current_;
    block->current_->state = State::done;
    ++block->done_;
    kernel_progress();
    block->warps_[self.linear / kWarp].alive &= ~(1u << self.linear % kWarp);
    block->last_exit_ = static_cast<int>(self.linear);
    if (block->at_barrier_ > 0)
      block->fail("returns while %u threads wait at __syncthreads %s:%d", block->at_barrier_,
                  block->barrier_site_.name(), block->barrier_site_.line);
    if (block->ready_warps_ == 0) {
      block->free_stacks_.push_back(stack);
      if (block->done_ < block->thread_count_) block->diagnose();
      block->go(stack->context, block->caller_, true);
    }
    Thread* const next = block->pick();
    if (next->state == State::fresh) {  // it starts on this stack: no switch needed
      next->stack = stack;
      next->state = State::ready;
      continue;
    }
    block->free_stacks_.push_back(stack);
    block->current_stack_ = next->stack;
    block->go(stack->context, next->stack->context, true);
  }
}

// ---- switching

void Block::go(Context& from, Context& to, bool for_good) {
  came_from_ = &from;
  leave_stack(for_good ? nullptr : &from.fake_stack, to.low, to.bytes);
  switch_context(from, to);
  arrived(&from);
}

void Block::arrived(Context* self) {
  const void* low = nullptr;
  std::size_t bytes = 0;
  enter_stack(self == nullptr ? nullptr : self->fake_stack, &low, &bytes);
  if (came_from_ == &caller_) {
    caller_.low = low;
    caller_.bytes = bytes;
  }
}

void Block::resume_next(Context& from, bool for_good) {
  Thread* const next = pick();
  if (next == nullptr) {
    if (done_ < thread_count_) diagnose();
    go(from, caller_, for_good);
    return;
  }
  if (next->state == State::fresh) {
    next->stack = take_stack();
    next->state = State::ready;
  }
  current_stack_ = next->stack;
  go(from, next->stack->context, for_good);
}

void Block::wait(State state, Site site) {
  Thread& self = *current_;
  self.state = state;
  self.site = site;
  resume_next(self.stack->context, false);
  self.state = State::ready;
  // Blocks switch at other points than barriers, too.
  if (shares_ && order_ == ThreadOrder::random && draw() % 16 == 0) yield();
}

Block::Thread* Block::pick() {
  if (ready_warps_ == 0) return nullptr;
  if (order_ == ThreadOrder::random || (ready_warps_ >> current_warp_ & 1) == 0) current_warp_ = choose(ready_warps_);
  const unsigned lane = choose(warps_[current_warp_].ready);
  current_ = &threads_[current_warp_ * kWarp + lane];
  forget_ready(current_->linear);
  thread_index = current_->index;
  return current_;
}

unsigned Block::choose(unsigned set) {
  switch (order_) {
    case ThreadOrder::forward: return std::countr_zero(set);
    case ThreadOrder::reverse: return 31 - std::countl_zero(set);
    case ThreadOrder::random: break;
  }
  for (unsigned skip = draw() % std::popcount(set); skip > 0; --skip) set &= set - 1;
  return std::countr_zero(set);
}

unsigned Block::draw() {
  random_ ^= random_ << 13;
  random_ ^= random_ >> 17;
  random_ ^= random_ << 5;
  return random_ >> 3;
}

void Block::wake(unsigned warp, unsigned lanes) {
  if (lanes == 0) return;
  warps_[warp].ready |= lanes;
  ready_warps_ |= 1u << warp;
}

void Block::forget_ready(unsigned thread) {
  Warp& warp = warps_[thread / kWarp];
  warp.ready &= ~(1u << thread % kWarp);
  if (warp.ready == 0) ready_warps_ &= ~(1u << thread / kWarp);
}

// ---- failing

// No unwinding: the fibers are abandoned and their stacks reclaimed.
void Block::fail(const char* format, ...) {
  int used = std::snprintf(message_, sizeof message_, "block %u thread %u: ", number_, current_->linear);
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(message_ + used, sizeof message_ - used, format, arguments);
  va_end(arguments);
  leave();
}

void Block::fail_address(const char* text, const void* code, cudaError_t error) {
  failure_.code = code;
  failure_.error = error;
  fail("%s", text);
}

void Block::leave() {
  go(abandoned_, caller_, true);
  std::abort();
}

void Block::diagnose() {
  char waiting[320] = "";
  int used = 0, shown = 0;
  for (unsigned i = 0; i < thread_count_ && shown < 3; ++i) {
    if (threads_[i].state != State::in_warp_operation) continue;
    used += std::snprintf(waiting + used, sizeof waiting - used, " thread %u in a warp operation at %.60s:%d,", i,
                          threads_[i].site.name(), threads_[i].site.line);
    ++shown;
  }
  fail("nothing can go on:%s %u threads at __syncthreads %s:%d, %u returned", waiting, at_barrier_,
       at_barrier_ > 0 ? barrier_site_.name() : "", at_barrier_ > 0 ? barrier_site_.line : 0, done_);
}

// ---- barriers and warps

void Block::barrier(Site site) {
  if (at_barrier_ == 0) {
    barrier_site_ = site;
  } else if (!(barrier_site_ == site)) {
    fail("__syncthreads at %s:%d while others wait at %s:%d", site.name(), site.line, barrier_site_.name(),
         barrier_site_.line);
  }
  if (done_ > 0) fail("__syncthreads at %s:%d after thread %d has returned", site.name(), site.line, last_exit_);
  if (++at_barrier_ == thread_count_) {
    release_barrier();
    forget_ready(current_->linear);
    yield();
  } else {
    wait(State::at_barrier, site);
  }
}

void Block::release_barrier() {
  at_barrier_ = 0;
  ++epoch_;
  kernel_progress();
  for (unsigned w = 0; w < warp_count_; ++w) wake(w, warps_[w].alive);
  if (detector != nullptr)
    for (unsigned i = 0; i < thread_count_; ++i) threads_[i].copies.announce_unfinished(i);
}

void Block::collective(unsigned mask, void* arguments, Combine combine, Site site) {
  const unsigned lane = current_->linear % kWarp, number = current_->linear / kWarp;
  Warp& warp = warps_[number];
  const unsigned existing = lanes_of(number);
  if ((mask >> lane & 1) == 0) fail("the warp mask at %s:%d lacks the calling lane", site.name(), site.line);
  if (mask != kFullWarp && (mask & ~existing) != 0)
    fail("the warp mask at %s:%d names lanes that do not exist", site.name(), site.line);
  mask &= existing;
  if ((mask & ~warp.alive) != 0) fail("the warp mask at %s:%d names lanes that have returned", site.name(), site.line);
  const unsigned first = std::countr_zero(mask);
  for (unsigned others = warp.busy & ~(1u << first); others != 0; others &= others - 1)
    if ((warp.collectives[std::countr_zero(others)].mask & mask) != 0)
      fail("the warp mask at %s:%d overlaps one that other lanes wait with", site.name(), site.line);
  WarpCollective& pending = warp.collectives[first];
  if (pending.arrived == 0) {
    pending.mask = mask;
    pending.combine = combine;
    pending.site = site;
    warp.busy |= 1u << first;
  } else if (pending.mask != mask || pending.combine != combine || !(pending.site == site)) {
    fail("lanes of one mask in different warp operations or with different masks: %s:%d and %s:%d", site.name(),
         site.line, pending.site.name(), pending.site.line);
  }
  pending.arguments[lane] = arguments;
  pending.arrived |= 1u << lane;
  if (pending.arrived == mask) {
    pending.arrived = 0;
    kernel_progress();
    warp.busy &= ~(1u << first);
    combine(pending.arguments, mask, *this, site);
    wake(number, mask & ~(1u << lane));
  } else {
    wait(State::in_warp_operation, site);
  }
}

void Block::check_fenced(Site site) {
  for (unsigned i = 0; i < thread_count_; ++i)
    if (!threads_[i].copies.fenced())
      fail("wgmma at %s:%d may not see the copies of thread %u: fence.proxy.async is missing after their wait",
           site.name(), site.line, i);
}

void Block::warp_fence(unsigned mask) {
  Warp& warp = warps_[current_->linear / kWarp];
  if (mask == warp.alive) ++warp.epoch;
}

// ---- memory

void* Block::shared_array(const void* key, std::size_t bytes, const char* name) {
  void* const array = shared_.array(key, bytes, name);
  if (array == nullptr)
    fail(
        "no shared memory is left for %s: at most 48 KiB in 63 arrays, and with the dynamic part what the launch may "
        "take",
        name);
  return array;
}

bool Block::copies_late() {
  switch (simulation().async_copy) {
    case AsyncCopy::eager: return false;
    case AsyncCopy::lazy: return true;
    case AsyncCopy::random: break;
  }
  return (draw() & 1) != 0;
}

}  // namespace dp::simt
