// How large the buckets of gradients are where nobody says.
#include <cstring>

#include "dp/world.h"
#include "engine/bucket_tuning.h"
#include "engine/data_parallel_state.h"
#include "engine/test_modes.h"

namespace dp {

// On GPUs by what a sum costs there, measured once for a set of devices; elsewhere, and where nothing may depend on timing, a fixed size.
std::size_t DataParallel::State::usual_bucket_bytes(
    std::span<const std::unique_ptr<kernels::Communicator>> communicators) {
  const std::size_t fixed = engine::default_bucket_bytes(*table);
  if (options.devices.front().kind != DeviceKind::cuda || size() == 1 || !options.autotune || options.deterministic ||
      !(engine::worth_tuning(*table) || engine::test_modes().tune_small_networks))
    return fixed;
  World* const world = options.world.get();
  const bool leads = world == nullptr || world->leads();
  const auto of_first = [&](double value) {
    if (world == nullptr) return value;
    const std::string first = world->from_first({reinterpret_cast<const char*>(&value), sizeof value});
    if (first.size() == sizeof value) std::memcpy(&value, first.data(), sizeof value);
    return value;
  };
  kernels::Backend& backend = kernels::backend(DeviceKind::cuda);
  const std::string name = communicators.front()->name();  // "p2p; no nccl: why"
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
