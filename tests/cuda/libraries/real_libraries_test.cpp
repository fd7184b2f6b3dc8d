// NVIDIA's libraries without a GPU: cuDNN plan creation for a described device is tested; execution is not. Skipped if
// the libraries are not installed.
#include <cstring>
#include <set>

#include "cuda/last.h"
#include "kernels/conv/cuda_cudnn.h"
#include "kernels/conv/cuda_cudnn_norm.h"
#include "kernels/device/cuda/cuda_backend.h"
#include "kernels/device/cuda/libraries/libraries.h"
#include "kernels/linear/cuda_cublaslt.h"
#include "support/catch.h"

using namespace dp;
using namespace dp::kernels;
using namespace dp::kernels::cuda;
using namespace dp::test;

namespace {

// The serialised device properties of cuDNN 9.8 and newer.
constexpr char kH200[] = R"({"deviceVer":900,"multiProcessorCount":132,"warpSize":32,"maxSharedMemoryPerBlock":49152,
"maxSharedMemoryPerBlockOptin":232448,"reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,
"maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"regsPerBlock":65536,"totalGlobalMem":150754820096,"smClockRateKHz":1980000,
"l2CacheSize":62914560,"maxBlockSize":[1024,1024,64],"memClockRateKHz":3201000,"maxGridSize":[2147483647,65535,65535],
"supportCoopLaunch":1,"pciDeviceId":0,"isTccDriver":0,"cudaDeviceId":0,"driverVer":13000,"deviceName":"NVIDIA H200"})";

// Empty if this cuDNN does not support device descriptions.
std::optional<CudnnDescriptor> h200() {
  try {
    CudnnDescriptor properties(*cudnn().api, CudnnKind::device_properties);
    properties.set<char>(CudnnAttribute::device_properties_json, std::span<const char>(kH200, std::strlen(kH200)));
    properties.finalize();
    return properties;
  } catch (const CudnnRefusal&) {
    return std::nullopt;
  }
}

std::vector<OpDesc> directions(DType type, bool fused) {
  const TensorDesc x = last({64, 64, 32, 32}, type), w = last({128, 64, 3, 3}, type), y = last({64, 128, 16, 16}, type);
  const Window window{3, 2, 1};
  return {Conv2dForward{x, w, y, window, fused, fused}, Conv2dBackwardData{y, w, x, window},
          Conv2dBackwardWeights{x, y, w, window, false}};
}

}  // namespace

TEST_CASE("real cuDNN makes plans of our graphs for an H200, each engine with another name") {
  if (cudnn().api == nullptr) DP_SKIP(cudnn().reason);
  const auto properties = h200();
  if (!properties) DP_SKIP("cuDNN " + cudnn_release(*cudnn().api) + " knows no device by its description");
  const CudnnTarget target{cudnn().api, nullptr, &*properties};
  for (const DType type : {DType::f32, DType::bf16, DType::f16})
    // Only float32 fuses bias and ReLU without compiling a kernel at run time, for which cuDNN needs a driver.
    for (const OpDesc& desc : directions(type, type == DType::f32)) {
      INFO(name_of(desc) << " " << to_string(type));
      const bool is_f32 = type == DType::f32;
      const auto graph = convolution_graph(target, *cudnn_convolution(desc));
      const auto configs = configs_of(target, graph, {.is_f32 = is_f32}, kMaxCudnnCandidates);
      std::set<std::string> names;
      int plans = 0;
      for (const auto& config : configs) {
        CHECK(names.insert(config->name()).second);
        CHECK(config->name().starts_with("eng"));
        if (is_f32) CHECK(!config->has(CudnnNote::tensor_core));
        try {
          if (CudnnPlan(target, config).workspace_bytes() <= kMostLibraryWorkspace) ++plans;
        } catch (const CudnnRefusal&) {  // rejected, as at run time
        }
      }
      CHECK(plans >= 2);
      for (const auto& config :
           configs_of(target, graph, {.deterministic = true, .is_f32 = is_f32}, kMaxCudnnCandidates))
        CHECK(!config->has(CudnnNote::nondeterministic));
      if (is_f32) {
        const auto with = configs_of(target, graph, {.tf32 = true, .is_f32 = true}, kMaxCudnnCandidates);
        CHECK(std::any_of(with.begin(), with.end(),
                          [](const auto& config) { return config->has(CudnnNote::tensor_core); }));
      }
    }
}

namespace {

// Number of plans that can be created from the heuristics' configurations of a graph.
int plans_of(const CudnnTarget& target, const CudnnNormConvolution& c) {
  int plans = 0;
  const auto graph = norm_convolution_graph(target, c);
  for (const auto& config : configs_of(target, graph, {}, kMaxCudnnCandidates)) try {
      if (CudnnPlan(target, config).workspace_bytes() <= kMostLibraryWorkspace) ++plans;
    } catch (const CudnnRefusal&) {  // rejected, as at run time
    }
  return plans;
}

}  // namespace

// cuDNN accepts the graphs in both types. Whether bfloat16 has engines is unknown without a driver to compile them.
TEST_CASE("real cuDNN has engines for float16 convolutions fused with batch normalisation on an H200") {
  if (cudnn().api == nullptr) DP_SKIP(cudnn().reason);
  const auto properties = h200();
  if (!properties) DP_SKIP("cuDNN " + cudnn_release(*cudnn().api) + " knows no device by its description");
  const CudnnTarget target{cudnn().api, nullptr, &*properties};
  for (const DType type : {DType::bf16, DType::f16})
    for (const int stride : {1, 2}) {
      INFO(to_string(type) << " stride " << stride);
      const TensorDesc x = last({64, 64, 32, 32}, type), w = last({64, 64, 3, 3}, type),
                       y = last({64, 64, 32 / stride, 32 / stride}, type);
      const Window window{3, stride, 1};
      const auto plans = [&](CudnnNormConvolution c, CudnnDirection direction) {
        c.convolution = {direction, x, w, y, window};
        return plans_of(target, c);
      };
      const int forms[] = {plans({.statistics = true}, CudnnDirection::forward),
                           plans({.norm = true, .statistics = true}, CudnnDirection::forward),
                           plans({.norm = true}, CudnnDirection::backward_weights),
                           plans({}, CudnnDirection::backward_data)};
      if (type == DType::f16)
        for (const int count : forms) CHECK(count >= 1);
      CHECK_NOTHROW(plans({.norm = true}, CudnnDirection::forward));
      for (const bool mask : {false, true})
        CHECK_NOTHROW(plans({.add = true, .result = mask, .sums = false, .mask = mask}, CudnnDirection::backward_data));
      if (stride > 1) continue;
      for (const bool add : {false, true})
        for (const bool result : {false, true}) {
          const int count = plans({.add = add, .result = result}, CudnnDirection::backward_data);
          if (type == DType::f16) CHECK(count >= 1);
        }
    }
}

TEST_CASE("real libraries reject a host without a GPU, and own kernels are used") {
  if (cuda_backend().probe().count > 0) DP_SKIP("there is a GPU");
  if (cudnn().api == nullptr && cublaslt().api == nullptr) DP_SKIP(cudnn().reason + "; " + cublaslt().reason);
  CudaOpOptions options;
  options.libraries = std::make_shared<Libraries>(0);
  CHECK(options.libraries->cudnn_handle() == nullptr);
  for (const OpDesc& desc : directions(DType::f32, true)) CHECK(cudnn_candidates(desc, options).empty());
  const TensorDesc low = last({64, 64, 32, 32}, DType::f16), weights = last({64, 64, 3, 3}, DType::f16);
  CHECK(cudnn_candidates(NormConv2dForward{low, weights, low, {3, 1, 1}, true, true}, options).empty());
  const Shape x{64, 512}, w{10, 512}, y{64, 10};
  const LinearForward linear{{x, DType::f32, plain(x, DType::f32)},
                             {w, DType::f32, plain(w, DType::f32)},
                             {y, DType::f32, plain(y, DType::f32)},
                             true,
                             true};
  for (const Candidate& candidate : cublaslt_candidates(linear, options)) CHECK(candidate.name.empty());
}
