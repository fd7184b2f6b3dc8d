// Makes the CPU's ops from their descriptors.
#include "kernels/device/cpu/cpu_op.h"

#include <dnnl.hpp>
#include <memory>

#include "kernels/device/cpu/announce.h"
#include "kernels/device/cpu/dnnl_op.h"
#include "kernels/device/host/memory.h"
#include "kernels/fused/fused_host_op.h"

namespace dp::kernels {
namespace {

template <typename Desc>
std::unique_ptr<HostOp> unfused(const Desc& desc, const CpuOpOptions& options) {
  return std::make_unique<FusedHostOp>(desc, [&](const auto& part) { return make(part, options); });
}

}  // namespace

std::unique_ptr<HostOp> make(const NormConv2dForward& desc, const CpuOpOptions& options) {
  return unfused(desc, options);
}
std::unique_ptr<HostOp> make(const NormConv2dBackwardData& desc, const CpuOpOptions& options) {
  return unfused(desc, options);
}
std::unique_ptr<HostOp> make(const NormConv2dBackwardWeights& desc, const CpuOpOptions& options) {
  return unfused(desc, options);
}
std::unique_ptr<HostOp> make(const LinearDropoutForward& desc, const CpuOpOptions& options) {
  return unfused(desc, options);
}
std::unique_ptr<HostOp> make(const Conv2dPoolForward& desc, const CpuOpOptions& options) {
  return unfused(desc, options);
}
std::unique_ptr<HostOp> make(const Conv2dReluBackwardData& desc, const CpuOpOptions& options) {
  return unfused(desc, options);
}
std::unique_ptr<HostOp> make(const LinearPoolBackwardData& desc, const CpuOpOptions& options) {
  return unfused(desc, options);
}
std::unique_ptr<HostOp> make(const LinearReluBackward& desc, const CpuOpOptions& options) {
  return unfused(desc, options);
}
std::unique_ptr<HostOp> make(const LinearLoss& desc, const CpuOpOptions& options) { return unfused(desc, options); }

// Visits the closed set of descriptors.
std::unique_ptr<HostOp> make_cpu_op(const OpDesc& desc, const CpuOpOptions& options) {
  check_shapes(desc, DType::f32, options.bfloat16 ? LowPrecision::bfloat16 : LowPrecision::converted);
  CpuOpOptions used = options;
  if (kThreadSanitizer) used.threads = 1;
  require_address_space(0);                // oneDNN 2.6 crashes when an internal allocation fails
  const OmpThreads threads(used.threads);  // oneDNN partitions its work for the current number of threads
  try {
    return std::visit([&](const auto& d) { return make(d, used); }, desc);
  } catch (const dnnl::error& error) {
    throw Error(ErrorCode::usage,
                std::string(name_of(desc)) + " cannot be created for" + shapes_of(desc) + ": oneDNN: " + error.what());
  }
}

}  // namespace dp::kernels
