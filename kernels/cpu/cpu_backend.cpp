#include "kernels/cpu/cpu_backend.h"

#include <dnnl.hpp>

#include "kernels/cpu/cpu_layout.h"
#include "kernels/cpu/cpu_op.h"
#include "kernels/cpu/machine_rates.h"
#include "kernels/host/host_backend.h"
#include "kernels/host/host_context.h"

namespace dp::kernels {
namespace {

class CpuContext final : public HostContext {
 public:
  using HostContext::HostContext;

  DType compute_type() const override { return DType::f32; }
  std::unique_ptr<Op> make_op(const OpDesc& desc) override {
    return make_cpu_op(desc, {options().threads, options().deterministic, options().fast_convolutions});
  }
  Layout plain_layout(const Shape& shape, DType type) override { return plain_cpu_layout(shape, type); }
  Rates rates() override {
    return {measured_gflops(options().threads) * 1e9, measured_gbytes(options().threads) * 1e9, "measured"};
  }
  Layout with_type(const TensorDesc& tensor, DType) override { return tensor.layout; }
};

class CpuBackend final : public HostBackend {
 public:
  std::string describe() const override {
    const dnnl_version_t* const version = dnnl_version();
    return "oneDNN      " + std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
           std::to_string(version->patch) + "\n";
  }
  std::unique_ptr<Context> open(Device device, const ContextOptions& options) override {
    if (options.activations)
      throw Error(ErrorCode::usage, std::string("mixed precision in ") + to_string(*options.activations) +
                                        " requires GPUs: CPU replicas compute in float32; turn it off");
    return std::make_unique<CpuContext>(device, options);
  }
};

}  // namespace

Backend& cpu_backend() {
  static CpuBackend backend;
  return backend;
}

}  // namespace dp::kernels
