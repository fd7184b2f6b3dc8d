// On a real GPU: every candidate of cuDNN, cuBLASLt and our tensor-core kernels for the layers of both networks
// computes the same as our baseline kernels. Library candidates that lose NaN are printed as notes. CTest runs each
// case in its own process, so that an illegal access does not hide other results.
#include <algorithm>
#include <cstdio>

#include "cuda/last.h"
#include "cuda/libraries/judged_candidates.h"
#include "kernels/device/cuda/context.h"
#include "kernels/device/cuda/cuda_backend.h"
#include "kernels/device/cuda/libraries/libraries.h"
#include "kernels/tuning/candidates.h"
#include "kernels/tuning/tuner.h"
#include "support/catch.h"

using namespace dp;
using namespace dp::kernels;
using namespace dp::kernels::cuda;
using namespace dp::test;

namespace {

TensorDesc rows(const Shape& shape, DType type = DType::f32) { return {shape, type, plain(shape, type)}; }

std::vector<OpDesc> convolution(const Shape& x_shape, std::int64_t out, const Window& window, bool fused, DType type) {
  const std::int64_t edge = (x_shape[2] + 2 * window.padding.h - window.kernel.h) / window.stride.h + 1;
  const Shape weights{out, x_shape[1], window.kernel.h, window.kernel.h};
  const TensorDesc x = last(x_shape, type), w = last(weights, type), y = last({x_shape[0], out, edge, edge}, type);
  return {Conv2dForward{x, w, y, window, fused, fused}, Conv2dBackwardData{y, w, x, window},
          Conv2dBackwardWeights{x, y, last(weights), window, fused}};
}

std::vector<OpDesc> linear(std::int64_t batch, std::int64_t features, std::int64_t out, bool relu, DType type) {
  const Shape weights{out, features};
  const TensorDesc x = rows({batch, features}, type), w = rows(weights, type), y = rows({batch, out}, type);
  return {LinearForward{x, w, y, true, relu}, LinearBackwardData{y, w, x},
          LinearBackwardWeights{x, y, rows(weights), true}};
}

// Every fused form of a convolution and a batch normalisation.
std::vector<OpDesc> beside_norm(const Shape& x_shape, std::int64_t out, const Window& window, DType type) {
  const std::int64_t edge = (x_shape[2] + 2 * window.padding.h - window.kernel.h) / window.stride.h + 1;
  const Shape weights{out, x_shape[1], window.kernel.h, window.kernel.h};
  const TensorDesc x = last(x_shape, type), w = last(weights, type), y = last({x_shape[0], out, edge, edge}, type);
  std::vector<OpDesc> descs{
      NormConv2dForward{x, w, y, window, false, true}, NormConv2dForward{x, w, y, window, true, false},
      NormConv2dForward{x, w, y, window, true, true}, NormConv2dBackwardWeights{x, y, last(weights), window}};
  for (const bool add : {false, true})
    for (const int relu : {0, 1, 2})
      descs.emplace_back(NormConv2dBackwardData{y, w, x, window, relu > 0, add, relu > 1});
  return descs;
}

// Checks every candidate: of the libraries, or on tensor cores.
void check_candidates(const OpDesc& desc, const CudaOpOptions& options, int& compared, bool tensor_cores = false) {
  const auto baseline = std::visit([&](const auto& d) { return make(d, options); }, desc);
  std::vector<std::unique_ptr<CudaOp>> made;
  std::vector<CudaOp*> ops{baseline.get()};
  const auto is_one_of = [](std::string_view name, std::initializer_list<std::string_view> families) {
    return std::ranges::find(families, name) != families.end();
  };
  for (const Candidate& candidate : other_candidates(desc, *baseline, options))
    if (tensor_cores ? is_one_of(candidate.family,
                                 {family::mma, family::resident, family::warpgroup, family::wgmma, family::thin})
                     : is_one_of(candidate.family, {family::cudnn, family::cublaslt}))
      if (auto op = candidate.make()) ops.push_back(made.emplace_back(std::move(op)).get());
  const dp::test::Judged found = dp::test::judged(ops, try_ops(trial_arguments(desc), ops));
  INFO(problem_of(desc, *baseline));
  CHECK(found.failures == std::vector<std::string>{});
  for (const std::string& note : found.notes)
    std::printf("note: %s: %s\n", problem_of(desc, *baseline).c_str(), note.c_str());
  compared += static_cast<int>(made.size());
}

struct Multiplied {
  DType type;
  bool tf32 = false;
};

bool no_gpu() {
  const DeviceProbe probe = cuda_backend().probe();
  if (probe.count == 0) dp::test::mark_skipped(probe.reason);
  return probe.count == 0;
}

CudaOpOptions with_libraries(bool tf32) {
  CudaOpOptions options;
  options.libraries = std::make_shared<Libraries>(0);
  options.tf32 = tf32;
  return options;
}

enum Direction { kForward, kData, kWeights };

void check_cudnn(Direction direction, const Multiplied& as) {
  if (no_gpu()) return;
  if (cudnn().api == nullptr) DP_SKIP(cudnn().reason);
  const CudaOpOptions options = with_libraries(as.tf32);
  int compared = 0;
  for (const auto& descs : {convolution({64, 64, 32, 32}, 64, {3, 1, 1}, false, as.type),
                            convolution({64, 64, 32, 32}, 128, {3, 2, 1}, false, as.type),
                            convolution({64, 64, 32, 32}, 128, {1, 2, 0}, false, as.type),
                            convolution({64, 512, 4, 4}, 512, {3, 1, 1}, false, as.type),
                            convolution({64, 32, 26, 26}, 64, {3, 1, 0}, true, as.type),
                            convolution({5, 7, 9, 9}, 13, {3, 2, 1}, true, as.type)})
    check_candidates(descs[direction], options, compared);
  CHECK(compared > 0);
}

void check_cublaslt(const Multiplied& as) {
  if (no_gpu()) return;
  if (cublaslt().api == nullptr) DP_SKIP(cublaslt().reason);
  const CudaOpOptions options = with_libraries(as.tf32);
  int compared = 0;
  for (const auto& descs :
       {linear(64, 9216, 128, true, as.type), linear(64, 512, 10, false, as.type), linear(3, 257, 33, true, as.type)})
    for (const OpDesc& desc : descs) check_candidates(desc, options, compared);
  CHECK(compared > 0);
}

void check_cudnn_beside_norm(Direction direction, DType type) {
  if (no_gpu()) return;
  if (cudnn().api == nullptr) DP_SKIP(cudnn().reason);
  const auto is_wanted = [&](const OpDesc& desc) {
    return std::holds_alternative<NormConv2dForward>(desc)        ? direction == kForward
           : std::holds_alternative<NormConv2dBackwardData>(desc) ? direction == kData
                                                                  : direction == kWeights;
  };
  const CudaOpOptions options = with_libraries(false);
  int compared = 0;
  for (const auto& descs :
       {beside_norm({64, 64, 32, 32}, 64, {3, 1, 1}, type), beside_norm({64, 64, 32, 32}, 128, {3, 2, 1}, type),
        beside_norm({64, 64, 32, 32}, 128, {1, 2, 0}, type), beside_norm({64, 512, 4, 4}, 512, {3, 1, 1}, type)})
    for (const OpDesc& desc : descs)
      if (is_wanted(desc)) check_candidates(desc, options, compared);
  // For bfloat16 cuDNN compiles kernels at run time, and may not support these graphs.
  if (type == DType::f16) CHECK(compared > 0);
}

constexpr int kMinCandidates = 4;  // one tile each

void check_tensor_cores(const Shape& x_shape, std::int64_t out, const Window& window, DType type) {
  if (no_gpu()) return;
  const CudaOpOptions options = options_of_device(0);
  if (options.compute_capability < 80) DP_SKIP("the first GPU has no compute capability of 8.0 or more");
  std::vector<OpDesc> descs = beside_norm(x_shape, out, window, type);
  const auto forward = std::get<NormConv2dForward>(descs.front());
  const TensorDesc &x = forward.x, &w = forward.w, &y = forward.y;
  descs.emplace_back(Conv2dForward{x, w, y, window, true, true});
  descs.emplace_back(Conv2dBackwardData{y, w, x, window});
  descs.emplace_back(Conv2dBackwardWeights{x, y, last(w.shape), window, true});
  for (const OpDesc& desc : descs) {
    int compared = 0;
    check_candidates(desc, options, compared, /*tensor_cores=*/true);
    INFO(name_of(desc));
    CHECK(compared >= kMinCandidates);
  }
}

}  // namespace

// Test names must not contain semicolons, because CMake would split them.
#define DP_IN_EVERY_TYPE(name, ...)        \
  TEST_CASE(name " in float32") {          \
    const Multiplied as{DType::f32};       \
    __VA_ARGS__;                           \
  }                                        \
  TEST_CASE(name " in TF32") {             \
    const Multiplied as{DType::f32, true}; \
    __VA_ARGS__;                           \
  }                                        \
  TEST_CASE(name " in bfloat16") {         \
    const Multiplied as{DType::bf16};      \
    __VA_ARGS__;                           \
  }                                        \
  TEST_CASE(name " in float16") {          \
    const Multiplied as{DType::f16};       \
    __VA_ARGS__;                           \
  }
#define DP_IN_16_BITS(name, ...)    \
  TEST_CASE(name " in bfloat16") {  \
    const DType type = DType::bf16; \
    __VA_ARGS__;                    \
  }                                 \
  TEST_CASE(name " in float16") {   \
    const DType type = DType::f16;  \
    __VA_ARGS__;                    \
  }

DP_IN_EVERY_TYPE("cuDNN equals own kernels: convolutions", check_cudnn(kForward, as))
DP_IN_EVERY_TYPE("cuDNN equals own kernels: data gradients", check_cudnn(kData, as))
DP_IN_EVERY_TYPE("cuDNN equals own kernels: weight gradients", check_cudnn(kWeights, as))
DP_IN_EVERY_TYPE("cuBLASLt equals own kernels: linear layers", check_cublaslt(as))

DP_IN_16_BITS("cuDNN fused with batch normalisation equals own kernels: convolutions",
              check_cudnn_beside_norm(kForward, type))
DP_IN_16_BITS("cuDNN fused with batch normalisation equals own kernels: data gradients",
              check_cudnn_beside_norm(kData, type))
DP_IN_16_BITS("cuDNN fused with batch normalisation equals own kernels: weight gradients",
              check_cudnn_beside_norm(kWeights, type))

// Cells resident in shared memory at three widths, partial tiles, strides, 1x1, many and few channels.
DP_IN_16_BITS("own kernels on tensor cores: 64 to 64 channels of 32x32",
              check_tensor_cores({64, 64, 32, 32}, 64, {3, 1, 1}, type))
DP_IN_16_BITS("own kernels on tensor cores: 64 to 64 channels of 56x56",
              check_tensor_cores({8, 64, 56, 56}, 64, {3, 1, 1}, type))
DP_IN_16_BITS("own kernels on tensor cores: 64 to 64 channels of 112x112",
              check_tensor_cores({2, 64, 112, 112}, 64, {3, 1, 1}, type))
DP_IN_16_BITS("own kernels on tensor cores: 64 to 72 channels of 9x9",
              check_tensor_cores({5, 64, 9, 9}, 72, {3, 1, 1}, type))
DP_IN_16_BITS("own kernels on tensor cores: 64 to 128 channels of 32x32, stride 2",
              check_tensor_cores({16, 64, 32, 32}, 128, {3, 2, 1}, type))
DP_IN_16_BITS("own kernels on tensor cores: 64 to 128 channels of 32x32, 1x1",
              check_tensor_cores({16, 64, 32, 32}, 128, {1, 2, 0}, type))
DP_IN_16_BITS("own kernels on tensor cores: 1024 to 64 channels of 4x4",
              check_tensor_cores({8, 1024, 4, 4}, 64, {3, 1, 1}, type))
DP_IN_16_BITS("own kernels on tensor cores: 512 to 512 channels of 4x4",
              check_tensor_cores({64, 512, 4, 4}, 512, {3, 1, 1}, type))
// Small shapes, also for compute-sanitizer.
DP_IN_16_BITS("own kernels on tensor cores: 64 to 64 channels of 8x8",
              check_tensor_cores({2, 64, 8, 8}, 64, {3, 1, 1}, type))
DP_IN_16_BITS("own kernels on tensor cores: 8 to 8 channels of 5x5",
              check_tensor_cores({3, 8, 5, 5}, 8, {3, 1, 1}, type))
