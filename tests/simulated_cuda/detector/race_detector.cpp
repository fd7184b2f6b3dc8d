#include "simulated_cuda/detector/race_detector.h"

#include <algorithm>

#include "simulated_cuda/api/kernel_call.h"
#include "simulated_cuda/runtime/devices.h"

namespace dp::simt {
namespace {

constexpr std::size_t kMaxFindings = 8;  // per kind and operation

bool is_write(Access kind) { return kind != Access::read; }

// Distance of two threads: the larger, the fewer primitives order them.
int distance(const Accessed& a, const Accessed& b) {
  if (a.block != b.block) return 3;
  if (a.thread / kWarp != b.thread / kWarp) return 2;
  return a.thread != b.thread ? 1 : 0;
}

// threadIdx, blockIdx, blockDim and gridDim.
bool is_thread_index(const void* address) {
  const auto away = reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(&thread_index);
  return away + 128 < 256;
}

// Calls visit(address, bit set of bytes) for each cell that the access touches.
template <class Visit>
void for_cells(const void* address, std::size_t bytes, Visit visit) {
  auto at = reinterpret_cast<std::uintptr_t>(address);
  const std::uintptr_t end = at + bytes;
  while (at < end) {
    const std::uintptr_t next = std::min(end, (at / kCellBytes + 1) * kCellBytes);
    const unsigned first = at % kCellBytes, count = static_cast<unsigned>(next - at);
    visit(reinterpret_cast<const void*>(at), static_cast<std::uint8_t>(((1u << count) - 1) << first));
    at = next;
  }
}

}  // namespace

void RaceDetector::begin(std::uint32_t operation) {
  operation_ = operation;
  last_ordered_ = 0;
  resident_ = nullptr;
  fences_.new_operation();
  const std::lock_guard lock(extents_mutex_);
  for (const Extent& extent : freed_extents_) global_.forget(extent.begin, extent.end - extent.begin);
  freed_extents_.clear();
}

RaceDetector::Resident& RaceDetector::enter_block(const Block& block) {
  if (resident_ != nullptr && resident_->number == block.number()) return *resident_;
  while (residents_.size() <= block.slot()) {
    residents_.emplace_back();
    residents_.back().shared.resize(SharedMemory::kBytes / kCellBytes);
  }
  resident_ = &residents_[block.slot()];
  if (resident_->operation != operation_ || resident_->number != block.number()) {
    resident_->operation = operation_;
    resident_->number = block.number();
    resident_->run = ++block_run_;
    resident_->fences = {};
  }
  return *resident_;
}

void RaceDetector::fence(unsigned thread) { enter_block(*running_block).fences.fence(thread); }

void RaceDetector::access(const void* address, unsigned bytes, Access kind, unsigned thread, const void* code) {
  Block* const block = running_block;
  if (block == nullptr || !block->on_fiber() || block->on_current_stack(address) || is_thread_index(address)) return;
  Accessed access{.life = operation_,
                  .block = block->number(),
                  .epoch = block->epoch(),
                  .warp_epoch = block->warp_epoch(thread),
                  .thread = static_cast<std::uint16_t>(thread),
                  .kind = kind,
                  .bytes = 0,
                  .code = code};
  Resident& resident = enter_block(*block);
  if (kind == Access::atomic) fences_.atomic(resident.fences, address, access);
  if (block->shared().holds(address)) {
    if (!block->shared().inside_array(address, bytes)) refuse(*block, address, bytes, kind, code);
    access.life = resident.run;
    access_shared(*block, address, bytes, access);
  } else if (inside_allocation(address, bytes)) {
    const int owner = owner_of(address);
    if (owner >= 0 && owner != running.device && !device(running.device).reaches[owner])
      refuse(*block, address, bytes, kind, code);
    access_global(address, bytes, access);
  } else if (is_device_address(address)) {
    refuse(*block, address, bytes, kind, code);
  }
}

void RaceDetector::range(const void* begin, std::size_t bytes, Access kind) {
  const Accessed access{.life = operation_, .kind = kind};
  access_global(begin, static_cast<unsigned>(bytes), access);
}

// ---- threads of one kernel

bool RaceDetector::conflict(const Accessed& earlier, const Accessed& later, bool shared) const {
  if (earlier.life != later.life || (earlier.bytes & later.bytes) == 0) return false;
  if (earlier.kind == Access::atomic && later.kind == Access::atomic) return false;
  if (earlier.block != later.block) return !shared && !resident_->fences.ordered(earlier, later);
  if (earlier.thread == later.thread || earlier.epoch != later.epoch) return false;
  return earlier.thread / kWarp != later.thread / kWarp || earlier.warp_epoch == later.warp_epoch;
}

void RaceDetector::access_shared(Block& block, const void* address, unsigned bytes, const Accessed& access) {
  for_cells(address, bytes, [&](const void* at, std::uint8_t set) {
    Cell& cell = resident_->shared[block.shared().offset(at) / kCellBytes];
    Accessed now = access;
    now.bytes = set;
    const auto place = [&] {
      return "byte " + std::to_string(block.shared().offset_in_array(at)) + " of shared " + block.shared().name_of(at);
    };
    if (conflict(cell.write, now, true)) found_race(cell.write, now, place());
    if (!is_write(now.kind)) {
      note_read(cell, now);
      return;
    }
    for (const Accessed& read : cell.reads)
      if (conflict(read, now, true)) found_race(read, now, place());
    if (cell.write.by_the_same(now)) now.bytes |= cell.write.bytes;
    cell.write = now;
  });
}

// Keeps the two readers with the largest distance: the next writer differs from at least one of them.
void RaceDetector::note_read(Cell& cell, const Accessed& access) {
  auto& [first, second] = cell.reads;
  if (first.by_the_same(access)) {
    first.bytes |= access.bytes;
    return;
  }
  const auto unordered = [&](const Accessed& read) {
    Accessed writing = access;
    writing.kind = Access::write;
    return conflict(read, writing, false);
  };
  if (!unordered(first)) {
    first = access;
  } else if (!unordered(second) || distance(first, access) > distance(first, second) ||
             (access.bytes & ~second.bytes) != 0) {
    second = access;
  }
}

// ---- operations on streams

void RaceDetector::access_global(const void* address, unsigned bytes, const Accessed& access) {
  for_cells(address, bytes, [&](const void* at, std::uint8_t set) {
    Accessed now = access;
    now.bytes = set;
    touch_global(global_.at(at), now, at);
  });
}

void RaceDetector::touch_global(Cell& cell, const Accessed& now, const void* address) {
  if (cell.write.life != 0 && (cell.write.bytes & now.bytes) != 0) {
    if (cell.write.life != operation_) {
      check_operation(cell.write.life, cell.write.kind, now, address);
    } else if (conflict(cell.write, now, false)) {
      found_race(cell.write, now, "global memory");
    }
  }
  if (!is_write(now.kind)) {
    for (Accessed& read : cell.reads) {
      if (read.life == 0 || read.life == operation_) continue;
      const std::uint32_t reader = read.life;
      read = {};
      if (clocks_.ordered(reader, operation_)) continue;
      for (std::uint32_t& kept : cell.readers) {
        if (kept != 0 && kept != reader && !clocks_.ordered(kept, operation_)) continue;
        kept = reader;
        break;
      }
    }
    note_read(cell, now);
    return;
  }
  for (const Accessed& read : cell.reads) {
    if (read.life == 0 || (read.bytes & now.bytes) == 0) continue;
    if (read.life != operation_) {
      check_operation(read.life, Access::read, now, address);
    } else if (conflict(read, now, false)) {
      found_race(read, now, "global memory");
    }
  }
  for (std::uint32_t& reader : cell.readers) {
    if (reader != 0 && reader != operation_) check_operation(reader, Access::read, now, address);
    reader = 0;
  }
  Accessed kept = now;
  if (cell.write.by_the_same(now)) kept.bytes |= cell.write.bytes;
  cell.write = kept;
}

void RaceDetector::check_operation(std::uint32_t earlier, Access earlier_kind, const Accessed& later,
                                   const void* address) {
  if (earlier == last_ordered_) return;
  if (clocks_.ordered(earlier, operation_)) {
    last_ordered_ = earlier;
    return;
  }
  const bool known = std::any_of(missing_.begin(), missing_.end(), [&](const MissingWait& missing) {
    return missing.earlier == earlier && missing.earlier_kind == earlier_kind && missing.later_kind == later.kind;
  });
  if (!known && missing_.size() < kMaxFindings) missing_.push_back({earlier, earlier_kind, later.kind, address});
}

void RaceDetector::found_race(const Accessed& earlier, const Accessed& later, const std::string& place) {
  const bool known = std::any_of(races_.begin(), races_.end(), [&](const Race& race) {
    return race.earlier.code == earlier.code && race.later.code == later.code && race.earlier.kind == earlier.kind;
  });
  if (!known && races_.size() < kMaxFindings) races_.push_back({earlier, later, place});
}

// ---- allocations

void RaceDetector::allocated(const void* begin, std::size_t bytes) {
  const std::lock_guard lock(extents_mutex_);
  const char* const first = static_cast<const char*>(begin);
  extents_.insert(std::upper_bound(extents_.begin(), extents_.end(), first,
                                   [](const char* a, const Extent& b) { return a < b.begin; }),
                  {first, first + bytes});
  ++extent_changes_;
}

void RaceDetector::freed(const void* begin, std::size_t bytes) {
  const std::lock_guard lock(extents_mutex_);
  std::erase_if(extents_, [&](const Extent& extent) { return extent.begin == begin; });
  ++extent_changes_;
  freed_extents_.push_back({static_cast<const char*>(begin), static_cast<const char*>(begin) + bytes});
}

bool RaceDetector::inside_allocation(const void* address, unsigned bytes) {
  const char* const first = static_cast<const char*>(address);
  // Most accesses are in a recently used extent. The cache needs no lock while nothing is allocated or freed.
  if (const unsigned changes = extent_changes_; changes != recent_changes_) {
    recent_changes_ = changes;
    recent_extents_.fill({});
  }
  for (const Extent& recent : recent_extents_)
    if (first >= recent.begin && first + bytes <= recent.end) return true;
  const std::lock_guard lock(extents_mutex_);
  const auto above = std::upper_bound(extents_.begin(), extents_.end(), first,
                                      [](const char* a, const Extent& b) { return a < b.begin; });
  if (above == extents_.begin() || first + bytes > above[-1].end) return false;
  recent_extents_[next_recent_++ % recent_extents_.size()] = above[-1];
  return true;
}

}  // namespace dp::simt
