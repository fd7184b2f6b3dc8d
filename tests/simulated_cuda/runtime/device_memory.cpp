#include "simulated_cuda/runtime/device_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "simulated_cuda/emulator/detector.h"
#include "simulated_cuda/emulator/sanitizer.h"
#include "simulated_cuda/runtime/quiet_lock.h"
#include "simulated_cuda/simulation.h"

namespace dp::simt {
namespace {
constexpr std::size_t kPage = 4096;
constexpr std::size_t kAlignment = 256;  // as guaranteed by CUDA
constexpr int kNan = 0xff;
constexpr unsigned char kRed = 0xa5;

std::size_t rounded(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }
}  // namespace

void* DeviceMemory::allocate(std::size_t bytes, std::size_t limit) {
  const QuietLock lock(mutex_);
  const std::size_t padded = rounded(bytes, kAlignment);
  if (padded > limit || used_ + padded > limit) return nullptr;
  Allocation allocation;
  allocation.page_bytes = rounded(padded, kPage);
  allocation.pages = place(allocation.page_bytes);
  if (allocation.pages == nullptr) return nullptr;
  allocation.begin = allocation.pages + allocation.page_bytes - padded;
  allocation.bytes = bytes;
  mprotect(allocation.pages, allocation.page_bytes, PROT_READ | PROT_WRITE);
  unpoison(allocation.pages, allocation.page_bytes);
  std::memset(allocation.begin, kNan, bytes);
  std::memset(allocation.begin + bytes, kRed, padded - bytes);
  poison(allocation.pages, allocation.page_bytes);
  unpoison(allocation.begin, bytes);
  if (open_ == 0) protect(allocation);
  allocations_.insert(std::upper_bound(allocations_.begin(), allocations_.end(), allocation,
                                       [](const auto& a, const auto& b) { return a.begin < b.begin; }),
                      allocation);
  used_ += padded;
  if (detector != nullptr) detector->allocated(allocation.begin, bytes);
  return allocation.begin;
}

// Reuses freed addresses as late as possible, so that a use after free is detected.
char* DeviceMemory::place(std::size_t page_bytes) {
  if (base_ == nullptr) {
    void* const range = mmap(nullptr, kRange, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) throw std::bad_alloc();
    base_ = next_ = static_cast<char*>(range);
  }
  for (int round = 0; round < 2; ++round) {
    for (const Allocation& other : allocations_)
      if (next_ < other.pages + other.page_bytes + kPage && other.pages < next_ + page_bytes + kPage)
        next_ = other.pages + other.page_bytes + kPage;
    if (next_ + page_bytes + kPage <= base_ + kRange) {
      char* const found = next_;
      next_ += page_bytes + kPage;
      return found;
    }
    next_ = base_;
  }
  return nullptr;
}

std::ptrdiff_t DeviceMemory::release(void* begin, bool& damaged) {
  const QuietLock lock(mutex_);
  const auto at =
      std::find_if(allocations_.begin(), allocations_.end(), [&](const Allocation& a) { return a.begin == begin; });
  if (at == allocations_.end()) return -1;
  const Allocation allocation = *at;
  allocations_.erase(at);
  char* const end = allocation.pages + allocation.page_bytes;
  mprotect(allocation.pages, allocation.page_bytes, PROT_READ);
  if (!kAddressSanitizer)  // it has detected any write past the end
    damaged = std::any_of(allocation.begin + allocation.bytes, end,
                          [](char c) { return static_cast<unsigned char>(c) != kRed; });
  madvise(allocation.pages, allocation.page_bytes, MADV_DONTNEED);
  mprotect(allocation.pages, allocation.page_bytes, PROT_NONE);
  poison(allocation.pages, allocation.page_bytes);
  used_ -= rounded(allocation.bytes, kAlignment);
  if (detector != nullptr) detector->freed(allocation.begin, allocation.bytes);
  return static_cast<std::ptrdiff_t>(allocation.bytes);
}

void DeviceMemory::release_all() {
  while (count() > 0) {
    bool damaged = false;
    release(allocations_.back().begin, damaged);
  }
}

void DeviceMemory::open() {
  const QuietLock lock(mutex_);
  if (open_++ > 0) return;
  for (const Allocation& allocation : allocations_)
    mprotect(allocation.pages, allocation.page_bytes, PROT_READ | PROT_WRITE);
}

void DeviceMemory::close() {
  const QuietLock lock(mutex_);
  if (--open_ > 0) return;
  for (const Allocation& allocation : allocations_) protect(allocation);
}

void DeviceMemory::protect(const Allocation& allocation) const {
  if (simulation().protect_memory) mprotect(allocation.pages, allocation.page_bytes, PROT_NONE);
}

bool DeviceMemory::find(const void* address, Allocation& found) const {
  const QuietLock lock(mutex_);
  const Allocation below = nearest(address);
  // A pointer to the end of an allocation belongs to it.
  if (below.begin == nullptr || !below.holds(address, 0)) return false;
  found = below;
  return true;
}

Allocation DeviceMemory::nearest(const void* address) const {
  const auto above = std::upper_bound(allocations_.begin(), allocations_.end(), address,
                                      [](const void* a, const Allocation& b) { return a < b.begin; });
  return above == allocations_.begin() ? Allocation{} : above[-1];
}

std::size_t DeviceMemory::count() const {
  const QuietLock lock(mutex_);
  return allocations_.size();
}

}  // namespace dp::simt
