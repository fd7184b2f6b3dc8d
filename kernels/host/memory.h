// Memory of host backends.
#pragma once

#include <cstddef>
#include <memory>

#include "kernels/backend.h"
#include "kernels/host/free_memory.h"

namespace dp::kernels {

// What libraries take without asking us, and can not do without: oneDNN's generated code and OpenMP's teams end the
// process when memory is refused. allocate_host and what starts threads leave so much of a limited address space.
constexpr std::size_t kAddressReserve = std::size_t{192} << 20;

// Bytes that may still be mapped under `ulimit -v` and `ulimit -d`; the largest number where there is no limit.
std::size_t free_address_space();
// Error(device) unless `bytes` and all that is held in reserve are free.
void require_address_space(std::size_t bytes);

// Holds the stacks of so many threads in reserve: OpenMP ends threads of a team and starts them anew as it likes.
class StackReserve {
 public:
  explicit StackReserve(int threads);
  ~StackReserve();
  StackReserve(const StackReserve&) = delete;
  StackReserve& operator=(const StackReserve&) = delete;

 private:
  std::size_t bytes_;
};

// The size that allocate_host rounds up to.
std::size_t resident_bytes(std::size_t bytes);
// Zeroed, 64-byte aligned, resident (the pages are touched by the calling thread); huge pages where it is large.
// Error(device) naming bytes asked and free.
std::unique_ptr<Buffer> allocate_host(std::size_t bytes);

}  // namespace dp::kernels
