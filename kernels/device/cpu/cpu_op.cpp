// Makes the CPU's ops from their descriptors.
#include "kernels/device/cpu/cpu_op.h"

#include <dnnl.hpp>
#include <memory>

#include "kernels/device/cpu/announce.h"
#include "kernels/device/cpu/dnnl_op.h"
#include "kernels/device/host/memory.h"
#include "kernels/fused/host.h"

namespace dp::kernels {
// Visits the closed set of descriptors.
std::unique_ptr<HostOp> make_cpu_op(const OpDesc& desc, const CpuOpOptions& options) {
  check_shapes(desc, DType::f32, options.bfloat16 ? LowPrecision::bfloat16 : LowPrecision::converted);
  CpuOpOptions used = options;
  if (kThreadSanitizer) used.threads = 1;
  require_address_space(0);                // oneDNN 2.6 crashes when an internal allocation fails
  const OmpThreads threads(used.threads);  // oneDNN partitions its work for the current number of threads
  try {
    return std::visit(
        [&]<typename D>(const D& d) -> std::unique_ptr<HostOp> {
          if constexpr (Fused<D>)
            return std::make_unique<FusedHostOp>(
                members_of<HostOp>(d, [&](const auto& one) { return make(one, used); }));
          else
            return make(d, used);
        },
        desc);
  } catch (const dnnl::error& error) {
    throw Error(ErrorCode::usage,
                std::string(name_of(desc)) + " cannot be created for" + shapes_of(desc) + ": oneDNN: " + error.what());
  }
}

}  // namespace dp::kernels
