// What this process may use of the machine.
#pragma once

#include <cstdint>

namespace dp {

// Bytes of memory that are still available to this process: the lesser of the machine's and its control groups'
// (containers). All physical memory if the system reports neither.
std::uint64_t available_memory();

}  // namespace dp
