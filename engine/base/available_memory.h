#pragma once

#include <cstdint>

namespace dp {

// Bytes that this process could still use without being killed for it, as far as the system tells: the machine's, and
// its container's where there is a limit.
std::uint64_t available_memory();

}  // namespace dp
