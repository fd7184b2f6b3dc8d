#include "simulated_cuda/detector/shadow.h"

namespace dp::simt {

Cell* Shadow::cells_of(std::uintptr_t page) {
  auto& cells = pages_[page];
  if (cells == nullptr) cells = std::make_unique<Cell[]>(kPageBytes / kCellBytes);
  return cells.get();
}

void Shadow::forget(const void* begin, std::size_t bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(begin), end = first + bytes;
  for (std::uintptr_t page = first / kPageBytes; page * kPageBytes < end; ++page) {
    const auto at = pages_.find(page);
    if (at == pages_.end()) continue;
    for (std::size_t i = 0; i < kPageBytes / kCellBytes; ++i) {
      const std::uintptr_t address = page * kPageBytes + i * kCellBytes;
      if (address + kCellBytes > first && address < end) at->second[i] = Cell();
    }
  }
}

void Shadow::forget_all() {
  pages_.clear();
  recent_.fill({});
}

}  // namespace dp::simt
