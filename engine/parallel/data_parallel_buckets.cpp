// The default size of gradient buckets.
#include <cstring>

#include "dp/process_group.h"
#include "engine/base/test_modes.h"
#include "engine/parallel/bucket_tuning.h"
#include "engine/parallel/data_parallel_state.h"

namespace dp {

std::int64_t bucket_granularity(const DataParallelOptions& options) {
  if (options.comm != Comm::nccl || options.reduce != Reduce::sharded) return 1;
  return static_cast<std::int64_t>(options.devices.size()) * kernels::kSliceBlock;
}

// Layers read weights in 16 bits, but biases and normalisation parameters in 32 bits. Stored separately, the weights
// can be gathered in 16 bits.
bool vectors_first(const DataParallelOptions& options) {
  return options.amp != Amp::off && options.reduce == Reduce::sharded && ranks_of(options) > 1;
}

std::vector<engine::Bucket> automatic_buckets(const DataParallelOptions& options, const engine::ParameterTable& table,
                                              std::size_t bucket_bytes) {
  const bool overlaps = options.devices.front().kind == DeviceKind::cuda && engine::worth_tuning(table);
  return table.buckets(bucket_bytes, overlaps ? engine::kLastBucket : 0);
}

std::vector<engine::Bucket> DataParallel::State::make_buckets(
    std::span<const std::unique_ptr<kernels::Communicator>> communicators) {
  if (options.bucket_bytes != 0) return table->buckets(options.bucket_bytes);
  options.bucket_bytes = usual_bucket_bytes(communicators);
  return automatic_buckets(options, *table, options.bucket_bytes);
}

// On GPUs, from the cost of an all-reduce, measured once per set of devices. A fixed size on other devices, for small
// networks, and if the result must not depend on timing.
std::size_t DataParallel::State::usual_bucket_bytes(
    std::span<const std::unique_ptr<kernels::Communicator>> communicators) {
  const std::size_t fixed = engine::default_bucket_bytes(*table);
  if (options.devices.front().kind != DeviceKind::cuda || size() == 1 || !options.autotune || options.deterministic ||
      !(engine::worth_tuning(*table) || engine::test_modes().tune_small_networks))
    return fixed;
  ProcessGroup* const group = options.process_group.get();
  const bool leads = group == nullptr || group->leads();
  const auto of_first = [&](double value) {
    if (group == nullptr) return value;
    const std::string first = group->from_first({reinterpret_cast<const char*>(&value), sizeof value});
    if (first.size() == sizeof value) std::memcpy(&value, first.data(), sizeof value);
    return value;
  };
  kernels::Backend& backend = kernels::backend(DeviceKind::cuda);
  const std::string name = communicators.front()->name();  // "p2p; cuda:0 and cuda:1 through the host (why)"
  std::string what = "bucket bytes, " + name.substr(0, name.find(';')) + ", " + std::to_string(size()) + " ranks";
  if (options.reduce_dtype != DType::f32) what += std::string(", sums in ") + to_string(options.reduce_dtype);
  double bytes = of_first(leads ? backend.remembered(options.devices, what).value_or(0) : 0);
  if (bytes < 1) {
    run([&](int local) {
      const auto at = static_cast<std::size_t>(local);
      const engine::SumCost cost = engine::measure_sums(*replicas[at], *communicators[at], options.reduce_dtype);
      if (local == 0) bytes = static_cast<double>(engine::bucket_bytes_for(cost));
    });
    bytes = of_first(bytes);
    if (leads) backend.remember(options.devices, what, bytes);
  }
  return static_cast<std::size_t>(bytes);
}

}  // namespace dp
