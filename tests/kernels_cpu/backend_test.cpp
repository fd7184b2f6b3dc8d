// Facts of the CPU backend: its library, its types, the measured rates.
#include "kernels/device/cpu/cpu_backend.h"

#include <cstdlib>
#include <dnnl.hpp>

#include "dp/error.h"
#include "kernels/device/cpu/dnnl_op.h"
#include "support/catch.h"
#include "support/emulated_bfloat16.h"

namespace {

using namespace dp;
using namespace dp::kernels;

std::unique_ptr<Context> open(std::optional<DType> activations = {}) {
  return cpu_backend().open({DeviceKind::cpu, 0}, {.activations = activations});
}

// The code and the message of the error of open().
std::pair<ErrorCode, std::string> refusal(DType activations) {
  try {
    open(activations);
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {ErrorCode::io, "no error"};
}

}  // namespace

TEST_CASE("the CPU backend describes itself by oneDNN's version") {
  const dnnl_version_t& version = *dnnl_version();
  CHECK(cpu_backend().describe() == "oneDNN      " + std::to_string(version.major) + "." +
                                        std::to_string(version.minor) + "." + std::to_string(version.patch) + "\n");
}

TEST_CASE("CPU replicas compute in float32, with activations of float32 or bfloat16") {
  CHECK(open()->compute_type() == DType::f32);
  CHECK(open()->activation_type() == DType::f32);
  const test::EmulatedBfloat16 emulated;
  CHECK(open(DType::bf16)->compute_type() == DType::f32);
  CHECK(open(DType::bf16)->activation_type() == DType::bf16);
  const auto [code, message] = refusal(DType::f16);
  CHECK(code == ErrorCode::usage);
  CHECK(message == "CPU replicas have no float16 activations; use --amp-dtype bfloat16");
}

TEST_CASE("emulated bfloat16 runs float32 ops between conversions") {
  const test::EmulatedBfloat16 emulated;
  const TensorDesc x{{4, 8}, DType::bf16, {}}, w{{3, 8}, DType::bf16, {}}, y{{4, 3}, DType::bf16, {}};
  const std::string name = open(DType::bf16)->make_op(LinearForward{x, w, y})->implementation();
  INFO(name);
  CHECK(name.rfind("widened: ", 0) == 0);
  CHECK(name.size() > std::string("widened: ").size());
}

TEST_CASE("bfloat16 is emulated if DP_EMULATE_BF16 is 1, not if it is 0") {
  const test::EmulatedBfloat16 emulated;  // unsets the variable at the end
  ::setenv("DP_EMULATE_BF16", "0", 1);
  if (has_bfloat16()) {
    const TensorDesc x{{64, 64}, DType::bf16, {}};
    CHECK(open(DType::bf16)->make_op(LinearForward{x, x, x})->implementation().find("widened") == std::string::npos);
  } else {
    const auto [code, message] = refusal(DType::bf16);
    CHECK(code == ErrorCode::usage);
    CHECK(message.find("DP_EMULATE_BF16=1") != std::string::npos);
  }
}

TEST_CASE("the rates of a CPU replica are measured, in operations and bytes per second") {
  const auto plausible = [](const Rates& rates) {
    INFO(rates.flops << " operations/s, " << rates.bytes << " bytes/s");
    CHECK(rates.source.ends_with("; memcpy of 64 MiB, bytes read and written"));
    CHECK(rates.flops > 1e8);
    CHECK(rates.flops < 5e11);  // of one thread
    CHECK(rates.bytes > 1e7);
    CHECK(rates.bytes < 5e11);
  };
  plausible(open()->rates());
  const test::EmulatedBfloat16 emulated;
  plausible(open(DType::bf16)->rates());  // the same instructions
}

TEST_CASE("the caller provides the scratch memory of oneDNN's primitives") {
  CHECK(op_attributes().get_scratchpad_mode() == dnnl::scratchpad_mode::user);
}
