// Memory of host backends.
#pragma once

#include <cstddef>
#include <memory>

#include "kernels/backend.h"

namespace dp::kernels {

std::size_t free_host_memory();  // bytes the system could hand out now; 0: unknown

// Zeroed, 64-byte aligned, resident (the pages are touched by the calling thread); huge pages where it is large.
// Error(device) naming bytes asked and free.
std::unique_ptr<Buffer> allocate_host(std::size_t bytes);

}  // namespace dp::kernels
