// The race detector's shadow memory: for every four bytes the last write and the reads since.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "simulated_cuda/emulator/detector.h"

namespace dp::simt {

// One access. `life`: the operation, or for shared memory the run of the block; 0: no access.
struct Accessed {
  std::uint32_t life = 0;
  std::uint32_t block = 0;
  std::uint32_t epoch = 0;       // number of barriers before it
  std::uint32_t warp_epoch = 0;  // number of __syncwarp calls before it
  std::uint16_t thread = 0;
  Access kind = Access::read;
  std::uint8_t bytes = 0;  // bit set: which of the four bytes
  const void* code = nullptr;

  bool same_thread(const Accessed& other) const {
    return life == other.life && block == other.block && thread == other.thread;
  }
  bool by_the_same(const Accessed& other) const {
    return same_thread(other) && epoch == other.epoch && warp_epoch == other.warp_epoch && kind == other.kind;
  }
};

struct Cell {
  Accessed write;
  std::array<Accessed, 2> reads;  // from the most distant threads: the next writer differs from at least one
  // Earlier operations that read, and that are not ordered before the operation of `reads`.
  std::array<std::uint32_t, 3> readers{};
};

inline constexpr std::size_t kCellBytes = 4;

class Shadow {
 public:
  Cell& at(const void* address) {
    const auto page = reinterpret_cast<std::uintptr_t>(address) / kPageBytes;
    Recent& recent = recent_[page % recent_.size()];
    if (recent.page != page || recent.cells == nullptr) recent = {page, cells_of(page)};
    return recent.cells[reinterpret_cast<std::uintptr_t>(address) % kPageBytes / kCellBytes];
  }
  void forget(const void* begin, std::size_t bytes);
  void forget_all();

 private:
  static constexpr std::size_t kPageBytes = 4096;
  struct Recent {
    std::uintptr_t page = 0;
    Cell* cells = nullptr;
  };
  Cell* cells_of(std::uintptr_t page);

  std::unordered_map<std::uintptr_t, std::unique_ptr<Cell[]>> pages_;
  std::array<Recent, 256> recent_;
};

}  // namespace dp::simt
