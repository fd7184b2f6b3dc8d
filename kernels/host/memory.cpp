#include "kernels/host/memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

namespace dp::kernels {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

class HostBuffer final : public Buffer {
 public:
  HostBuffer(void* data, std::size_t bytes) : data_(data), bytes_(bytes) {}
  ~HostBuffer() override { std::free(data_); }
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;

  void* data() override { return data_; }
  std::size_t bytes() const override { return bytes_; }

 private:
  void* data_;
  std::size_t bytes_;
};

[[noreturn]] void refuse(std::size_t asked, std::size_t free) {
  throw Error(ErrorCode::device, "out of memory: asked " + std::to_string(asked) + " bytes, " +
                                     (free > 0 ? std::to_string(free) : std::string("an unknown number of")) +
                                     " free; use a smaller batch or fewer replicas");
}

}  // namespace

std::size_t free_host_memory() {
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  std::size_t kibibytes = 0;
  while (file >> key >> kibibytes && std::getline(file, unit))
    if (key == "MemAvailable:") return kibibytes * 1024;
  return 0;
}

std::unique_ptr<Buffer> allocate_host(std::size_t bytes) {
  const std::size_t free = free_host_memory();
  if (free > 0 ? bytes > free : bytes > std::numeric_limits<std::size_t>::max() / 2) refuse(bytes, free);
  const std::size_t alignment = bytes >= kHugePage ? kHugePage : kAlignment;
  const std::size_t rounded = (bytes == 0 ? 1 : (bytes + alignment - 1) / alignment) * alignment;
  void* data = std::aligned_alloc(alignment, rounded);
  if (data == nullptr) refuse(bytes, free);
  if (alignment == kHugePage) madvise(data, rounded, MADV_HUGEPAGE);  // a wish: without it the pages are small
  std::memset(data, 0, rounded);
  return std::make_unique<HostBuffer>(data, bytes);
}

}  // namespace dp::kernels
