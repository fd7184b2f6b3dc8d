// Memory that other processes of this host can map: how replicas in processes of their own read each other's arenas.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/backend.h"

namespace dp::kernels {

// As allocate_host, and with a place that another process can find it by. It has no name in the file system: nothing is left
// behind, however the process ends.
std::unique_ptr<Buffer> allocate_shared(std::size_t bytes);

// Where an address lies in memory that allocate_shared() gave in this process.
struct SharedPlace {
  int file = -1;             // descriptor in the owner; -1: no such memory
  std::uint64_t serial = 0;  // of the allocation: descriptors are used again, this number is not
  std::size_t bytes = 0;     // of the allocation
  std::size_t offset = 0;
};
SharedPlace find_shared(const void* address);

// The memory of other processes, mapped when first asked for. Used by one thread.
class PeerMemory {
 public:
  explicit PeerMemory(std::vector<pid_t> processes) : processes_(std::move(processes)) {}
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // What lies there in the process of that rank. Error(device) when it can not be mapped.
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
