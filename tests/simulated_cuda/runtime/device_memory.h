// The memory of one simulated device: its own address range, inaccessible while no operation needs it.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

namespace dp::simt {

struct Allocation {
  char* begin = nullptr;
  std::size_t bytes = 0;
  char* pages = nullptr;  // start of the mapped pages; the padded end touches an inaccessible page
  std::size_t page_bytes = 0;

  bool holds(const void* address, std::size_t length) const {
    return address >= begin && static_cast<const char*>(address) + length <= begin + bytes;
  }
};

class DeviceMemory {
 public:
  void* allocate(std::size_t bytes, std::size_t limit);  // null if more than `limit` bytes would be in use
  // Returns the size of the allocation, or -1 if none begins there. `damaged`: bytes after its end were overwritten.
  std::ptrdiff_t release(void* begin, bool& damaged);
  void release_all();

  // Nested: the memory is accessible from the first open() to the last close().
  void open();
  void close();

  bool owns(const void* address) const { return base_ != nullptr && address >= base_ && address < base_ + kRange; }
  bool find(const void* address, Allocation& found) const;  // the allocation that contains the address
  // For the fault handler's message: the nearest allocation below, without the lock.
  Allocation nearest(const void* address) const;
  std::size_t used() const { return used_; }
  std::size_t count() const;

 private:
  char* place(std::size_t page_bytes);
  void protect(const Allocation& allocation) const;

  static constexpr std::size_t kRange = std::size_t{1} << 34;

  mutable std::mutex mutex_;
  char* base_ = nullptr;
  char* next_ = nullptr;                 // where the search for free addresses starts
  std::vector<Allocation> allocations_;  // sorted by address
  std::size_t used_ = 0;
  int open_ = 0;
};

}  // namespace dp::simt
