// The size of gradient buckets, from the measured cost of an all-reduce on these devices.
#pragma once

#include <cstddef>
#include <vector>

#include "dp/parallel_options.h"
#include "engine/layers/parameters.h"
#include "engine/step/replica.h"

namespace dp::engine {

// Cost model of an all-reduce: S bytes take constant + S / bytes_per_second seconds.
struct AllReduceCost {
  double constant = 0;  // seconds
  double bytes_per_second = 0;
};
// Fits the model to the times of a small and a large all-reduce. bytes_per_second is infinite if the large one took no
// longer.
AllReduceCost fit_cost(std::size_t small_bytes, double small_seconds, std::size_t large_bytes, double large_seconds);

// The bucket size at which the constant cost equals the transfer time. Half this size pays the constant twice as often.
// Twice this size leaves twice as many bytes to reduce after backward. Rounded up to whole MiB, from 1 to 25 MiB.
std::size_t bucket_bytes_for(const AllReduceCost& cost);

// Maximum size of the last bucket, in bytes. No backward work is left to overlap with its reduction and update.
// PyTorch's first bucket has the same size.
inline constexpr std::size_t kLastBucket = std::size_t{1} << 20;

// False for small networks, which have only one bucket.
bool worth_tuning(const ParameterTable& table);
// The buckets if options.bucket_bytes is not set.
std::vector<Bucket> automatic_buckets(const DataParallelOptions& options, const ParameterTable& table,
                                      std::size_t bucket_bytes);
// Collective: every replica calls it with the communicator of its buckets. All-reduces the gradients, which must be
// zero, in `reduce_dtype`. bytes_per_second counts elements in the arena's type, even if `reduce_dtype` is smaller.
AllReduceCost measure_all_reduce(Replica& replica, kernels::Communicator& communicator, DType reduce_dtype);

}  // namespace dp::engine
