// Host memory that every device reaches.
#pragma once

#include <cstddef>

namespace dp::simt {

void* allocate_pinned(std::size_t bytes);  // null if there is none
bool release_pinned(void* begin);
void release_all_pinned();
bool is_pinned(const void* address);
std::size_t pinned_count();

}  // namespace dp::simt
