// Memory that other processes of this host can map, so that replicas in different processes can access each other's
// arenas (docs/decisions/0020).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/device/backend.h"

namespace dp::kernels {

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
