#include "engine/train/images_on.h"

#include <algorithm>

#include "dp/error.h"
#include "dp/process_group.h"
#include "engine/base/available_memory.h"
#include "kernels/backend.h"

namespace dp {
namespace {

constexpr std::size_t kShare =
    4;  // the images may take at most 1/kShare of the free memory of the host and of each device

std::size_t bytes_of(const Dataset& dataset) {
  return static_cast<std::size_t>(dataset.size()) * static_cast<std::size_t>(dataset.image_shape().numel());
}

bool has_room(Device device, const std::vector<Device>& devices, std::size_t bytes) {
  const auto replicas = static_cast<std::size_t>(std::count(devices.begin(), devices.end(), device));
  return bytes * replicas <= kernels::backend(device.kind).free_memory(device) / kShare;
}

}  // namespace

ImagesOn chosen_place(const DatasetPair& data, const TrainerOptions& options) {
  const bool varies = data.train->varies() || data.test->varies();
  if (options.images_on == ImagesOn::device && varies)
    throw Error(ErrorCode::usage,
                "this data set changes its images on each read, so it cannot be device-resident; use --images-on host");
  if (options.images_on != ImagesOn::automatic) return options.images_on;
  const std::vector<Device>& devices = options.parallel.devices;
  const std::size_t bytes = bytes_of(*data.train) + bytes_of(*data.test);
  const std::size_t copies =
      options.parallel.process_group ? static_cast<std::size_t>(options.parallel.process_group->local_size()) : 1;
  const bool keep = !varies && bytes * copies <= available_memory() / kShare &&
                    std::all_of(devices.begin(), devices.end(), [&](Device device) {
                      return device.kind == DeviceKind::cuda && has_room(device, devices, bytes);
                    });
  return keep ? ImagesOn::device : ImagesOn::host;
}

}  // namespace dp
