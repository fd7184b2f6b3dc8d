// The shared memory of one block at a time. Arrays are separated by red zones, and filled with NaN when the block
// starts.
#pragma once

#include <array>
#include <cstddef>

namespace dp::simt {

class SharedMemory {
 public:
  SharedMemory();
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // Starts a block with `dynamic_bytes` of dynamic shared memory. All arrays together have at most `limit` bytes.
  void start(std::size_t dynamic_bytes, std::size_t limit);
  void* dynamic() const { return memory_; }
  // The block's array for `key`. Null if it does not fit.
  void* array(const void* key, std::size_t bytes, const char* name);
  // The name of an array with an overwritten red zone; null if there is none.
  const char* damaged() const;

  bool holds(const void* address) const { return address >= memory_ && address < memory_ + kBytes; }
  // Whether the whole range is inside one array.
  bool inside_array(const void* address, std::size_t bytes) const {
    const char* const begin = static_cast<const char*>(address);
    for (std::size_t i = 0; i < count_; ++i)
      if (begin >= arrays_[i].begin && begin + bytes <= arrays_[i].begin + arrays_[i].bytes) return true;
    return false;
  }
  const char* name_of(const void* address) const;  // the array that contains the address, or the nearest one below
  std::size_t offset_in_array(const void* address) const;
  // Offset from the start, for the race detector's shadow.
  std::size_t offset(const void* address) const { return static_cast<const char*>(address) - memory_; }
  std::size_t static_bytes() const { return static_bytes_; }  // of this block so far

  static constexpr std::size_t kBytes = 320 * 1024;  // including red zones
  static constexpr std::size_t kStaticLimit = 48 * 1024;

 private:
  struct Array {
    const void* key = nullptr;
    const char* name = "";
    char* begin = nullptr;
    std::size_t bytes = 0;
    std::size_t padded = 0;  // including the red zone after it
  };
  const Array* below(const void* address) const;
  void* add(const void* key, std::size_t bytes, const char* name);

  char* memory_;
  std::array<Array, 64> arrays_;
  std::size_t count_ = 0;
  std::size_t top_ = 0;
  std::size_t static_bytes_ = 0;
  std::size_t room_ = 0;  // for static arrays
};

}  // namespace dp::simt
