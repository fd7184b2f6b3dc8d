// Host memory: its allocation, its free size, and memory that other processes can map.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/device/backend.h"

namespace dp::kernels {

// The host memory that this process can still allocate.

struct HostRoom {
  std::size_t bytes = 0;
  std::string limit;  // source of the limit: /proc/meminfo or a cgroup file
};

// The smallest of the system's available memory and the room in this process's cgroups (v1 and v2) and their parents.
// Cached files count as free. Empty if unknown.
std::optional<HostRoom> host_room();
// The bytes of host_room(), at least 1; 0 if unknown.
std::size_t free_host_memory();

// Memory of host backends.

// Address space left for libraries: oneDNN's generated code and OpenMP's teams end the process if memory is refused.
// allocate_host, and the code that starts threads, leave this much of a limited address space.
constexpr std::size_t kAddressReserve = std::size_t{192} << 20;

// Bytes that can still be mapped under `ulimit -v` and `ulimit -d`; the maximum of std::size_t if there is no limit.
std::size_t free_address_space();
// Error(device) unless `bytes` plus all reserves are free.
void require_address_space(std::size_t bytes);

// Made once a run has all its threads and memory. Error(device) unless `bytes`, which it takes later at times, and all
// reserves are free. While it exists, a quarter of kAddressReserve is left: what was enough at the start of a run must
// not end it at a checkpoint.
class AddressSpaceOfRun {
 public:
  explicit AddressSpaceOfRun(std::size_t bytes);
  ~AddressSpaceOfRun();
  AddressSpaceOfRun(const AddressSpaceOfRun&) = delete;
  AddressSpaceOfRun& operator=(const AddressSpaceOfRun&) = delete;
};

// Reserves address space for the stacks of `threads` threads, because OpenMP may end and restart the threads of a team
// at any time.
class StackReserve {
 public:
  explicit StackReserve(int threads);
  ~StackReserve();
  StackReserve(const StackReserve&) = delete;
  StackReserve& operator=(const StackReserve&) = delete;

 private:
  std::size_t bytes_;
};

// `bytes`, rounded up as allocate_host does.
std::size_t resident_bytes(std::size_t bytes);
// Allocates memory that is zeroed, 64-byte aligned and resident (the calling thread touches the pages); in huge pages
// from 2 MiB on. Error(device) with the bytes requested and free.
std::unique_ptr<Buffer> allocate_host(std::size_t bytes);

// Memory that other processes of this host can map, so that replicas in different processes can access each other's
// arenas (docs/decisions/0020).

// Allocates zeroed memory that another process can find by its SharedPlace. It has no name in the file system, hence
// nothing remains after the process ends, however it ends. Error(device), or Error(io) if the limit of file sizes is
// too small.
std::unique_ptr<Buffer> allocate_shared(std::size_t bytes);

// The location of an address in memory from this process's allocate_shared().
struct SharedPlace {
  int file = -1;             // file descriptor in the owner; -1: not shared memory
  std::uint64_t serial = 0;  // of the allocation; unlike descriptors, it is never reused
  std::size_t bytes = 0;     // of the allocation
  std::size_t offset = 0;
};
SharedPlace find_shared(const void* address);

// Maps memory of other processes on first use. Used by one thread.
class PeerMemory {
 public:
  explicit PeerMemory(std::vector<pid_t> processes) : processes_(std::move(processes)) {}
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // The address, in this process, of `place` in the process of `rank`. Error(device) if it cannot be mapped.
  void* at(int rank, const SharedPlace& place);

 private:
  struct Mapping {
    int rank;
    std::uint64_t serial;
    void* data;
    std::size_t bytes;
  };
  std::vector<pid_t> processes_;
  std::vector<Mapping> mappings_;
};

}  // namespace dp::kernels
