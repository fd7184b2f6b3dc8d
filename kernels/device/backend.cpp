#include "kernels/device/backend.h"

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
  if (Backend* const plugin = cuda_plugin()) return *plugin;
  throw Error(ErrorCode::device, "no usable GPU: " + probe_cuda().reason);
}

}  // namespace kernels
}  // namespace dp
