// Replaces operator new and delete of this program to count allocated bytes.
#include "checkpoint/memory_peak.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::size_t> in_use{0}, peak{0};

void* counted(void* memory) {
  if (!memory) throw std::bad_alloc();
  const std::size_t now = in_use += ::malloc_usable_size(memory);
  std::size_t seen = peak;
  while (now > seen && !peak.compare_exchange_weak(seen, now)) {
  }
  return memory;
}

void release(void* memory) {
  if (memory) in_use -= ::malloc_usable_size(memory);
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t bytes) { return counted(std::malloc(bytes)); }
void* operator new[](std::size_t bytes) { return counted(std::malloc(bytes)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  const auto unit = static_cast<std::size_t>(alignment);
  return counted(std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept try {
  return counted(std::malloc(bytes));
} catch (const std::bad_alloc&) {
  return nullptr;
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }

namespace dp::test {

MemoryPeak::MemoryPeak() : start_(in_use) { peak = in_use.load(); }
std::size_t MemoryPeak::bytes() const { return peak - start_; }

}  // namespace dp::test
