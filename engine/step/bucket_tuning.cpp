#include "engine/step/bucket_tuning.h"

#include "kernels/op_args.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>

namespace dp::engine {
namespace {

constexpr std::size_t kMebi = std::size_t{1} << 20;
constexpr std::size_t kSmall = 64 << 10, kLarge = 16 * kMebi;
constexpr int kRounds = 5, kAllReduces = 4;  // kAllReduces: per round

double seconds_of_all_reduce(Replica& replica, kernels::Communicator& communicator, std::size_t bytes,
                             DType reduce_dtype) {
  const DType type = replica.arenas.table().type();
  const auto count = static_cast<std::int64_t>(bytes / size_of(type));
  kernels::Stream& stream = replica.compute();
  kernels::Context& context = replica.context();
  const bool low = reduce_dtype == DType::bf16;
  // The rounded gradients use the memory of the weights, which are not initialised yet.
  void* const wide = replica.arenas.gradients();
  void* const reduced = low ? replica.arenas.values() : wide;
  const auto flat = [&](DType of) {
    const Shape shape{count};
    return kernels::TensorDesc{shape, of, context.plain_layout(shape, of)};
  };
  std::unique_ptr<kernels::Op> to_low, to_wide;
  if (low) to_low = context.make_op(kernels::Reorder{flat(type), flat(reduce_dtype)});
  if (low) to_wide = context.make_op(kernels::Reorder{flat(reduce_dtype), flat(type)});
  std::array<double, kRounds> rounds{};
  for (int round = -1; round < kRounds; ++round) {  // round -1 is a warm-up
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kAllReduces; ++i) {
      if (to_low) kernels::run_op<kernels::Reorder>(*to_low, stream, {.src = wide, .dst = reduced});
      communicator.all_reduce(reduced, count, low ? reduce_dtype : type, stream);
      if (to_wide) kernels::run_op<kernels::Reorder>(*to_wide, stream, {.src = reduced, .dst = wide});
    }
    context.flush();
    stream.synchronize();
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    if (round >= 0) rounds[static_cast<std::size_t>(round)] = passed.count() / kAllReduces;
  }
  std::nth_element(rounds.begin(), rounds.begin() + kRounds / 2, rounds.end());
  return rounds[kRounds / 2];
}

}  // namespace

AllReduceCost fit_cost(std::size_t small_bytes, double small_seconds, std::size_t large_bytes, double large_seconds) {
  const double more = large_seconds - small_seconds;
  if (more <= 0) return {small_seconds, INFINITY};
  const double rate = static_cast<double>(large_bytes - small_bytes) / more;
  return {std::max(0.0, small_seconds - static_cast<double>(small_bytes) / rate), rate};
}

std::size_t bucket_bytes_for(const AllReduceCost& cost) {
  const double mebis = cost.constant * cost.bytes_per_second / static_cast<double>(kMebi);
  return static_cast<std::size_t>(std::clamp(std::ceil(mebis), 1.0, 25.0)) * kMebi;
}

bool worth_tuning(const ParameterTable& table) { return default_bucket_bytes(table.bytes()) < table.bytes(); }

AllReduceCost measure_all_reduce(Replica& replica, kernels::Communicator& communicator, DType reduce_dtype) {
  const std::size_t large = std::min(kLarge, replica.arenas.table().bytes()), small = std::min(kSmall, large / 2);
  const double small_seconds = seconds_of_all_reduce(replica, communicator, small, reduce_dtype);
  return fit_cost(small, small_seconds, large, seconds_of_all_reduce(replica, communicator, large, reduce_dtype));
}

std::vector<Bucket> automatic_buckets(const DataParallelOptions& options, const ParameterTable& table,
                                      std::size_t bucket_bytes) {
  const bool overlaps = options.devices.front().kind == DeviceKind::cuda && worth_tuning(table);
  return table.buckets(bucket_bytes, overlaps ? kLastBucket : 0);
}

}  // namespace dp::engine
