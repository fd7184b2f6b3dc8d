// Host memory that every device can access.
#pragma once

#include <cstddef>

namespace dp::simt {

void* allocate_pinned(std::size_t bytes);  // null if memory is exhausted
bool release_pinned(void* begin);
void release_all_pinned();
bool is_pinned(const void* address);
std::size_t pinned_count();

}  // namespace dp::simt
