#include "kernels/device/backend.h"

#include <string>

#include "kernels/device/cpu/cpu_backend.h"
#include "kernels/device/plugin.h"
#include "kernels/device/reference/reference_backend.h"

namespace dp {

DeviceProbe probe_devices(DeviceKind kind) {
  return kind == DeviceKind::cuda ? kernels::probe_cuda() : DeviceProbe{1, {}};
}

namespace kernels {

Backend& backend(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::cpu: return cpu_backend();
    case DeviceKind::reference: return reference_backend();
    case DeviceKind::cuda: break;
  }
  std::string why_not;
  if (Backend* const plugin = cuda_plugin(&why_not)) return *plugin;
  throw Error(ErrorCode::device, "no usable GPU: " + why_not);
}

}  // namespace kernels
}  // namespace dp
