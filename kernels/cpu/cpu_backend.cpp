#include "kernels/cpu/cpu_backend.h"

#include <cstdlib>
#include <dnnl.hpp>

#include "kernels/cpu/bfloat16/widened_op.h"
#include "kernels/cpu/cpu_layout.h"
#include "kernels/cpu/cpu_op.h"
#include "kernels/cpu/machine_rates.h"
#include "kernels/host/host_backend.h"
#include "kernels/host/host_context.h"

namespace dp::kernels {
namespace {

bool emulates_bfloat16() {
  const char* const value = std::getenv("DP_EMULATE_BF16");
  return value != nullptr && std::string_view(value) == "1";
}

class CpuContext final : public HostContext {
 public:
  using HostContext::HostContext;

  DType compute_type() const override { return DType::f32; }
  DType activation_type() const override { return options().activations.value_or(DType::f32); }
  std::unique_ptr<Op> make_op(const OpDesc& desc) override {
    return make_cpu_op(desc, {.threads = options().threads,
                              .deterministic = options().deterministic,
                              .fast_convolutions = options().fast_convolutions,
                              .bfloat16 = activation_type() == DType::bf16,
                              .emulate_bfloat16 = emulates_});
  }
  Layout plain_layout(const Shape& shape, DType type) override { return plain_cpu_layout(shape, type); }
  Rates rates() override {
    const int threads = options().threads;
    const bool low = activation_type() == DType::bf16 && !emulates_;
    return {(low ? measured_bfloat16_gflops(threads) : measured_gflops(threads)) * 1e9, measured_gbytes(threads) * 1e9,
            std::string(low ? "a matrix product of oneDNN" : "fused multiply-adds on ten vectors in registers") +
                "; memcpy of 64 MiB, bytes read and written"};
  }
  Layout with_type(const TensorDesc& tensor, DType type) override {
    return make_layout(kernels::with_type(desc_of(tensor.layout), type), type);
  }

 private:
  const bool emulates_ = emulates_bfloat16();
};

void check_activations(DType type) {
  if (type == DType::bf16 && !has_bfloat16() && !emulates_bfloat16())
    throw Error(
        ErrorCode::usage,
        "--amp on CPU replicas requires a processor with bfloat16 instructions (AVX512-BF16 or AMX), which this "
        "one lacks; remove it. DP_EMULATE_BF16=1 computes the same with float32 instructions, slowly");
  if (type != DType::bf16)
    throw Error(ErrorCode::usage,
                std::string("CPU replicas have no ") + to_string(type) + " activations; use --amp-dtype bfloat16");
}

class CpuBackend final : public HostBackend {
 public:
  std::string describe() const override {
    const dnnl_version_t* const version = dnnl_version();
    return "oneDNN      " + std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
           std::to_string(version->patch) + "\n";
  }
  std::unique_ptr<Context> open(Device device, const ContextOptions& options) override {
    if (options.activations) check_activations(*options.activations);
    return std::make_unique<CpuContext>(device, options);
  }
};

}  // namespace

Backend& cpu_backend() {
  static CpuBackend backend;
  return backend;
}

}  // namespace dp::kernels
