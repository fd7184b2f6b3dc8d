#include "kernels/device/host/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <string>

#include "kernels/device/host/memory.h"

namespace dp::kernels {
namespace {

struct Region {
  const char* begin;
  SharedPlace place;
};

std::mutex regions_mutex;
std::vector<Region> regions;
std::uint64_t allocations = 0;

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::device, what + ": " + std::strerror(errno));
}

class SharedBuffer final : public Buffer {
 public:
  explicit SharedBuffer(std::size_t bytes) : bytes_(bytes), mapped_(std::max<std::size_t>(bytes, 1)) {
    require_address_space(mapped_);
    if (const std::size_t free = free_host_memory(); free > 0 && mapped_ > free)
      throw Error(ErrorCode::device, "out of memory: " + std::to_string(bytes) + " bytes requested, " +
                                         std::to_string(free) + " free; use a smaller batch or fewer replicas");
    file_ = ::memfd_create("dp", MFD_CLOEXEC);
    if (file_ < 0) refuse("cannot create shared memory");
    if (::ftruncate(file_, static_cast<off_t>(mapped_)) == 0)
      data_ = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file_, 0);
    if (data_ == MAP_FAILED) {
      const int error = errno;
      ::close(file_);
      errno = error;
      if (error == EFBIG)
        throw Error(ErrorCode::io, "shared memory of " + std::to_string(bytes) +
                                       " bytes exceeds the file size limit; raise ulimit -f, or use --comm mpi");
      refuse("out of shared memory: " + std::to_string(bytes) + " bytes requested");
    }
    const std::scoped_lock lock(regions_mutex);
    regions.push_back({static_cast<const char*>(data_), {file_, ++allocations, mapped_, 0}});
  }
  ~SharedBuffer() override {
    {
      const std::scoped_lock lock(regions_mutex);
      std::erase_if(regions, [this](const Region& region) { return region.begin == data_; });
    }
    ::munmap(data_, mapped_);
    ::close(file_);
  }
  SharedBuffer(const SharedBuffer&) = delete;
  SharedBuffer& operator=(const SharedBuffer&) = delete;

  void* data() override { return data_; }
  std::size_t bytes() const override { return bytes_; }
  void read(void* dst, const void* src, std::size_t bytes) const override { std::memcpy(dst, src, bytes); }

 private:
  std::size_t bytes_, mapped_;
  int file_ = -1;
  void* data_ = MAP_FAILED;
};

}  // namespace

std::unique_ptr<Buffer> allocate_shared(std::size_t bytes) { return std::make_unique<SharedBuffer>(bytes); }

SharedPlace find_shared(const void* address) {
  const auto* at = static_cast<const char*>(address);
  const std::scoped_lock lock(regions_mutex);
  for (const Region& region : regions) {
    if (at < region.begin || at >= region.begin + region.place.bytes) continue;
    SharedPlace place = region.place;
    place.offset = static_cast<std::size_t>(at - region.begin);
    return place;
  }
  return {};
}

PeerMemory::~PeerMemory() {
  for (const Mapping& mapping : mappings_) ::munmap(mapping.data, mapping.bytes);
}

void* PeerMemory::at(int rank, const SharedPlace& place) {
  for (const Mapping& mapping : mappings_)
    if (mapping.rank == rank && mapping.serial == place.serial) return static_cast<char*>(mapping.data) + place.offset;
  const std::string path =
      "/proc/" + std::to_string(processes_[static_cast<std::size_t>(rank)]) + "/fd/" + std::to_string(place.file);
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  void* data = MAP_FAILED;
  if (file >= 0) data = ::mmap(nullptr, place.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
  const int error = errno;
  if (file >= 0) ::close(file);
  if (data == MAP_FAILED)
    throw Error(ErrorCode::device, "the memory of rank " + std::to_string(rank) +
                                       " cannot be mapped: " + std::strerror(error) + "; use --comm mpi");
  mappings_.push_back({rank, place.serial, data, place.bytes});
  return static_cast<char*>(data) + place.offset;
}

}  // namespace dp::kernels
