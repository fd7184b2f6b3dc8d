// Finds unordered accesses by threads of one kernel and by operations on streams. Only one operation runs at a time, so
// the state needs no lock. The findings do not depend on timing.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <string>
#include <vector>

#include "simulated_cuda/detector/clocks.h"
#include "simulated_cuda/detector/fences.h"
#include "simulated_cuda/detector/shadow.h"
#include "simulated_cuda/emulator/block.h"
#include "simulated_cuda/emulator/detector.h"

namespace dp::simt {

class RaceDetector final : public Detector {
 public:
  void access(const void* address, unsigned bytes, Access kind, unsigned thread, const void* code) override;
  void fence(unsigned thread) override;
  void range(const void* begin, std::size_t bytes, Access kind) override;
  void allocated(const void* begin, std::size_t bytes) override;
  void freed(const void* begin, std::size_t bytes) override;
  void forget() override;

  std::size_t stream_created() override { return clocks_.stream_created(); }
  void stream_destroyed(std::size_t stream) override { clocks_.stream_destroyed(stream); }
  std::uint32_t operation(std::size_t stream, const std::string& what) override {
    return clocks_.operation(stream, what);
  }
  void recorded(std::size_t stream, const void* event) override { clocks_.recorded(stream, event); }
  void waits(std::size_t stream, const void* event) override { clocks_.waits(stream, event); }
  void host_waited_for_stream(std::size_t stream) override { clocks_.host_waited_for_stream(stream); }
  void host_waited_for_event(const void* event) override { clocks_.host_waited_for_event(event); }
  void event_destroyed(const void* event) override { clocks_.event_destroyed(event); }

  void begin(std::uint32_t operation) override;
  void end() override;

 private:
  struct Extent {
    const char* begin;
    const char* end;
  };
  struct Race {
    Accessed earlier, later;
    std::string place;
  };
  struct MissingWait {
    std::uint32_t earlier;
    Access earlier_kind, later_kind;
    const void* address;
  };

  // A block that has started and not ended. Several blocks of a grid take turns.
  struct Resident {
    std::uint32_t operation = 0;
    std::uint32_t number = 0;
    std::uint32_t run = 0;  // the `life` of accesses to its shared memory
    BlockFences fences;
    std::vector<Cell> shared;
  };

  Resident& enter_block(const Block& block);
  void access_shared(Block& block, const void* address, unsigned bytes, const Accessed& access);
  void access_global(const void* address, unsigned bytes, const Accessed& access);
  void touch_global(Cell& cell, const Accessed& access, const void* address);
  void check_operation(std::uint32_t earlier, Access earlier_kind, const Accessed& later, const void* address);
  void note_read(Cell& cell, const Accessed& access);
  bool conflict(const Accessed& earlier, const Accessed& later, bool shared) const;
  void found_race(const Accessed& earlier, const Accessed& later, const std::string& place);
  bool inside_allocation(const void* address, unsigned bytes);
  [[noreturn]] void refuse(Block& block, const void* address, unsigned bytes, Access kind, const void* code);

  std::mutex extents_mutex_;
  std::vector<Extent> extents_;  // device and pinned memory, sorted by address
  std::atomic<unsigned> extent_changes_{0};
  std::array<Extent, 4> recent_extents_{};
  unsigned recent_changes_ = 0, next_recent_ = 0;
  std::vector<Extent> freed_extents_;  // their shadow is cleared when the next operation begins

  Clocks clocks_;
  Shadow global_;
  std::deque<Resident> residents_;  // by slot
  Resident* resident_ = nullptr;    // the block that runs now; null outside a kernel
  Fences fences_;
  std::uint32_t operation_ = 0;     // the running operation
  std::uint32_t block_run_ = 0;     // number of blocks that have run
  std::uint32_t last_ordered_ = 0;  // cache: an operation that is ordered before the running one
  std::vector<Race> races_;         // reported at the end of the operation
  std::vector<MissingWait> missing_;
};

}  // namespace dp::simt
