// Sums over ranks in the fixed order of communicator.h: one pass over memory, the same bits for every split of a range.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/communicator.h"
#include "kernels/low_float.h"

namespace dp::kernels {

// For each element i of `range`: out[i] = the tree sum of parts[0][i], parts[1][i], ... for every out of `outs`, which
// may be among the parts. All point to elements of type T; BFloat16 is added in float and rounded once. `threads` of OpenMP share the work.
template <typename T>
void tree_sum(std::span<void* const> parts, std::span<void* const> outs, Range range, int threads);

extern template void tree_sum<float>(std::span<void* const>, std::span<void* const>, Range, int);
extern template void tree_sum<double>(std::span<void* const>, std::span<void* const>, Range, int);
extern template void tree_sum<BFloat16>(std::span<void* const>, std::span<void* const>, Range, int);

}  // namespace dp::kernels
