// The size of gradient buckets by what sums cost on these devices.
#pragma once

#include <cstddef>

#include "engine/plan/parameters.h"
#include "engine/replica/replica.h"

namespace dp::engine {

// A sum of S bytes takes constant + S / bytes_per_second.
struct SumCost {
  double constant = 0;  // seconds
  double bytes_per_second = 0;
};
// By the times of a small and of a large one. Infinitely fast where the large one took no longer.
SumCost cost_of(std::size_t small_bytes, double small_seconds, std::size_t large_bytes, double large_seconds);

// A bucket whose sum costs as much for being one as for its bytes: half of that size pays the constant twice as often, twice the
// size leaves twice as much to move when backward has ended. 1 to 25 MiB, in whole MiB.
std::size_t bucket_bytes_for(const SumCost& cost);

// The most that the last bucket holds: nothing is left to hide its sum and update behind. PyTorch's first bucket has this size, too.
inline constexpr std::size_t kLastBucket = std::size_t{1} << 20;

// Whether there is anything to tune: small networks are one bucket.
bool worth_tuning(const ParameterTable& table);
// Collective: all replicas call it, with the communicator of their buckets. Sums their gradients, which are zero, as `reduce_dtype`; bytes
// are those of the arena, whatever travels.
SumCost measure_sums(Replica& replica, kernels::Communicator& communicator, DType reduce_dtype);

}  // namespace dp::engine
