// Reduction over ranks in the fixed order of communicator.h, in one pass over memory. Every split of a range gives the
// same bits.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/communicator.h"
#include "kernels/low_float.h"

namespace dp::kernels {

// For each element i of `range`: out[i] = the tree sum of parts[0][i], parts[1][i], ... for every out in `outs`. An out
// may alias a part. All pointers are to elements of type T. BFloat16 is added in float32 and rounded once. Uses
// `threads` OpenMP threads.
template <typename T>
void tree_sum(std::span<void* const> parts, std::span<void* const> outs, Range range, int threads);

extern template void tree_sum<float>(std::span<void* const>, std::span<void* const>, Range, int);
extern template void tree_sum<double>(std::span<void* const>, std::span<void* const>, Range, int);
extern template void tree_sum<BFloat16>(std::span<void* const>, std::span<void* const>, Range, int);

}  // namespace dp::kernels
