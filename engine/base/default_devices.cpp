#include "dp/default_devices.h"

#include "dp/error.h"
#include "kernels/device/plugin.h"

namespace dp {

std::vector<Device> default_devices() {
  const DeviceProbe probe = probe_devices(DeviceKind::cuda);
  if (probe.count > 0) return gpus(parse_gpu_list("all", probe.count));
  if (kernels::devices_seen_by_driver() == 0) return cpus(2);
  throw Error(ErrorCode::device, "no usable GPU: " + probe.reason + "; to train on the CPU, pass cpus(N) as devices");
}

}  // namespace dp
