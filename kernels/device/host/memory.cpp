#include "kernels/device/host/memory.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <mutex>
#include <string>
#include <string_view>

#include "kernels/device/host/cores.h"

namespace dp::kernels {
namespace {

// File names of a cgroup version. `used` counts anonymous and shared memory, which cannot be reclaimed; cached files
// can.
struct Version {
  std::string_view limit;
  std::array<std::string_view, 2> used;  // keys in memory.stat, which include child groups
};
constexpr Version kFirst{"memory.limit_in_bytes", {"total_rss", "total_shmem"}};
constexpr Version kSecond{"memory.max", {"anon", "shmem"}};

std::optional<HostRoom> of_machine() {
  std::ifstream file(system_root() + "/proc/meminfo");
  std::string key, unit;
  std::size_t kibibytes = 0;
  while (file >> key >> kibibytes && std::getline(file, unit))
    if (key == "MemAvailable:") return HostRoom{kibibytes * 1024, "MemAvailable of /proc/meminfo"};
  return {};
}

// Empty if the group has no limit or is not mounted.
std::optional<HostRoom> of_group(const ControlGroup& group) {
  const Version& version = group.version == 1 ? kFirst : kSecond;
  const std::string limit = group.folder + "/" + std::string(version.limit);
  std::ifstream maximum(system_root() + limit), statistics(system_root() + group.folder + "/memory.stat");
  std::size_t bytes = 0, used = 0, value = 0;
  if (!(maximum >> bytes)) return {};  // "max": no limit
  for (std::string key; statistics >> key >> value;)
    if (std::find(version.used.begin(), version.used.end(), key) != version.used.end()) used += value;
  return HostRoom{bytes - std::min(bytes, used), limit};
}

}  // namespace

std::optional<HostRoom> host_room() {
  std::optional<HostRoom> least = of_machine();
  for (const ControlGroup& group : control_groups("memory"))
    if (const auto room = of_group(group); room && (!least || room->bytes < least->bytes)) least = room;
  return least;
}

std::size_t free_host_memory() {
  const std::optional<HostRoom> room = host_room();
  return room ? std::max<std::size_t>(room->bytes, 1) : 0;
}

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
  void read(void* dst, const void* src, std::size_t bytes) const override { std::memcpy(dst, src, bytes); }

 private:
  void* data_;
  std::size_t bytes_;
};

[[noreturn]] void refuse(std::size_t asked, std::size_t free) {
  throw Error(ErrorCode::device, "out of memory: " + std::to_string(asked) + " bytes requested, " +
                                     (free > 0 ? std::to_string(free) : std::string("an unknown number of")) +
                                     " free; use a smaller batch or fewer replicas");
}

constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();

std::atomic<std::size_t> stacks_in_reserve{0};
std::atomic<int> runs{0};  // AddressSpaceOfRun

std::size_t stack_bytes() {
  pthread_attr_t attributes;
  std::size_t bytes = std::size_t{8} << 20;
  if (::pthread_getattr_default_np(&attributes) != 0) return bytes;
  ::pthread_attr_getstacksize(&attributes, &bytes);
  ::pthread_attr_destroy(&attributes);
  return bytes;
}

std::size_t limit_of(decltype(RLIMIT_AS) resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kUnlimited;
  return static_cast<std::size_t>(limit.rlim_cur);
}

}  // namespace

std::size_t free_address_space() {
  const std::size_t all = limit_of(RLIMIT_AS), writable = limit_of(RLIMIT_DATA);
  if (all == kUnlimited && writable == kUnlimited) return kUnlimited;
  std::ifstream file("/proc/self/statm");
  std::array<std::size_t, 6> pages{};  // size, resident, shared, text, lib, data
  for (std::size_t& count : pages)
    if (!(file >> count)) return kUnlimited;
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const auto left = [&](std::size_t limit, std::size_t used) {
    return limit == kUnlimited ? kUnlimited : limit - std::min(limit, used * page);
  };
  return std::min(left(all, pages[0]), left(writable, pages[5]));
}

void require_address_space(std::size_t bytes) {
  const std::size_t free = free_address_space();
  const std::size_t reserve = (runs.load() > 0 ? kAddressReserve / 4 : kAddressReserve) + stacks_in_reserve.load();
  if (free >= reserve && free - reserve >= bytes) return;
  const std::string wanted = bytes > 0 ? std::to_string(bytes) + " bytes requested, " : "";  // 0: only the reserve
  throw Error(ErrorCode::device, "out of address space: " + wanted + std::to_string(free) + " free, and " +
                                     std::to_string(reserve) +
                                     " must stay free; raise ulimit -v and -d, or use fewer replicas or threads");
}

AddressSpaceOfRun::AddressSpaceOfRun(std::size_t bytes) {
  require_address_space(bytes);
  ++runs;
}

AddressSpaceOfRun::~AddressSpaceOfRun() { --runs; }

StackReserve::StackReserve(int threads) : bytes_(static_cast<std::size_t>(threads) * stack_bytes()) {
  stacks_in_reserve += bytes_;
}

StackReserve::~StackReserve() { stacks_in_reserve -= bytes_; }

std::size_t resident_bytes(std::size_t bytes) {
  const std::size_t alignment = bytes >= kHugePage ? kHugePage : kAlignment;
  return (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
}

std::unique_ptr<Buffer> allocate_host(std::size_t bytes) {
  // Small allocations are not checked: the check takes longer than the allocation.
  const std::size_t free = bytes >= kHugePage ? free_host_memory() : 0;
  if (free > 0 ? bytes > free : bytes > std::numeric_limits<std::size_t>::max() / 2) refuse(bytes, free);
  const std::size_t alignment = bytes >= kHugePage ? kHugePage : kAlignment;
  const std::size_t rounded = resident_bytes(bytes);
  static std::mutex one_at_a_time;  // two threads must not both claim the remaining space
  std::unique_lock lock(one_at_a_time);
  require_address_space(rounded);
  void* data = std::aligned_alloc(alignment, rounded);
  lock.unlock();
  if (data == nullptr) refuse(bytes, free_host_memory());
  if (alignment == kHugePage) madvise(data, rounded, MADV_HUGEPAGE);  // a hint only: pages stay small if it is refused
  std::memset(data, 0, rounded);
  return std::make_unique<HostBuffer>(data, bytes);
}

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
