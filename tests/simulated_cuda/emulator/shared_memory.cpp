#include "simulated_cuda/emulator/shared_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "simulated_cuda/emulator/sanitizer.h"

namespace dp::simt {
namespace {
constexpr std::size_t kAlignment = 128;
constexpr std::size_t kRedZone = 128;
constexpr int kNan = 0xff;
constexpr unsigned char kRed = 0xa5;
}  // namespace

SharedMemory::SharedMemory() {
  void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  memory_ = static_cast<char*>(memory);
  poison(memory_, kBytes);
}

SharedMemory::~SharedMemory() {
  unpoison(memory_, kBytes);
  munmap(memory_, kBytes);
}

void SharedMemory::start(std::size_t dynamic_bytes, std::size_t limit) {
  poison(memory_, kBytes);
  count_ = top_ = static_bytes_ = 0;
  room_ = std::min(kStaticLimit, limit - std::min(limit, dynamic_bytes));
  add(nullptr, dynamic_bytes, "the dynamic shared memory");
}

void* SharedMemory::array(const void* key, std::size_t bytes, const char* name) {
  for (std::size_t i = 1; i < count_; ++i)
    if (arrays_[i].key == key) return arrays_[i].begin;
  static_bytes_ += bytes;
  if (static_bytes_ > room_ || count_ == arrays_.size()) return nullptr;
  return add(key, bytes, name);
}

void* SharedMemory::add(const void* key, std::size_t bytes, const char* name) {
  const std::size_t padded = (bytes + kRedZone + kAlignment - 1) / kAlignment * kAlignment;
  if (top_ + padded > kBytes) return nullptr;
  char* const begin = memory_ + top_;
  unpoison(begin, padded);
  std::memset(begin, kNan, bytes);
  std::memset(begin + bytes, kRed, padded - bytes);
  poison(begin, padded);
  unpoison(begin, bytes);
  arrays_[count_++] = {key, name, begin, bytes, padded};
  top_ += padded;
  return begin;
}

const char* SharedMemory::damaged() const {
  for (std::size_t i = 0; i < count_; ++i) {
    const Array& array = arrays_[i];
    // The sanitizer detects these writes itself. It would report this check as an error, too.
    if (kAddressSanitizer) return nullptr;
    if (std::any_of(array.begin + array.bytes, array.begin + array.padded,
                    [](char c) { return static_cast<unsigned char>(c) != kRed; }))
      return array.name;
  }
  return nullptr;
}

const SharedMemory::Array* SharedMemory::below(const void* address) const {
  const Array* found = &arrays_[0];
  for (std::size_t i = 1; i < count_; ++i)
    if (arrays_[i].begin <= address) found = &arrays_[i];
  return found;
}

const char* SharedMemory::name_of(const void* address) const { return below(address)->name; }

std::size_t SharedMemory::offset_in_array(const void* address) const {
  return static_cast<const char*>(address) - below(address)->begin;
}

}  // namespace dp::simt
