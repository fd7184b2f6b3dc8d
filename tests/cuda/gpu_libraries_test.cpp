// On a real GPU: every way that cuDNN, cuBLASLt and our kernels on tensor cores offer for the layers of both networks computes what our
// ordinary kernels do.
#include "kernels/cuda/candidates.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/libraries.h"
#include "kernels/cuda/trial.h"
#include "support/catch.h"

using namespace dp;
using namespace dp::kernels;
using namespace dp::kernels::cuda;

namespace {

TensorDesc last(const Shape& shape, DType type = DType::f32) { return {shape, type, channels_last(shape, type)}; }
TensorDesc rows(const Shape& shape, DType type = DType::f32) { return {shape, type, plain(shape, type)}; }

std::vector<OpDesc> convolution(const Shape& x_shape, std::int64_t out, const Window& window, bool fused, DType type) {
  const std::int64_t edge = (x_shape[2] + 2 * window.padding - window.kernel) / window.stride + 1;
  const Shape weights{out, x_shape[1], window.kernel, window.kernel};
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

// Every form of a convolution with a batch normalisation beside it.
std::vector<OpDesc> beside_norm(const Shape& x_shape, std::int64_t out, const Window& window, DType type) {
  const std::int64_t edge = (x_shape[2] + 2 * window.padding - window.kernel) / window.stride + 1;
  const Shape weights{out, x_shape[1], window.kernel, window.kernel};
  const TensorDesc x = last(x_shape, type), w = last(weights, type), y = last({x_shape[0], out, edge, edge}, type);
  std::vector<OpDesc> descs{
      NormConv2dForward{x, w, y, window, false, true}, NormConv2dForward{x, w, y, window, true, false},
      NormConv2dForward{x, w, y, window, true, true}, NormConv2dBackwardWeights{x, y, last(weights), window}};
  for (const bool add : {false, true})
    for (const int relu : {0, 1, 2})
      descs.emplace_back(NormConv2dBackwardData{y, w, x, window, relu > 0, add, relu > 1});
  return descs;
}

// Each way that is there: of libraries, or on tensor cores.
void check_ways(const OpDesc& desc, const CudaOpOptions& options, int& compared, bool tensor_cores = false) {
  const auto pinned = std::visit([&](const auto& d) { return make(d, options); }, desc);
  std::vector<std::unique_ptr<CudaOp>> made;
  std::vector<CudaOp*> ops{pinned.get()};
  for (const Way& way : ways_beside(desc, *pinned, options))
    if (tensor_cores ? way.name.starts_with("own:mma") : way.name.find("own:") == std::string::npos)
      if (auto op = way.make()) ops.push_back(made.emplace_back(std::move(op)).get());
  const std::vector<double> times = try_ops(trial_arguments(desc), ops);
  for (std::size_t i = 1; i < ops.size(); ++i) {
    INFO(name_of(desc) << " by " << ops[i]->implementation());
    CHECK(times[i] < kUnfit);
    ++compared;
  }
}

}  // namespace

TEST_CASE("libraries on a GPU compute what own kernels do, in float32, with TF32, in bfloat16 and float16") {
  if (const DeviceProbe probe = cuda_backend().probe(); probe.count == 0) DP_SKIP(probe.reason);
  if (cudnn().api == nullptr && cublaslt().api == nullptr) DP_SKIP(cudnn().reason + "; " + cublaslt().reason);
  CudaOpOptions options;
  options.libraries = std::make_shared<Libraries>();
  struct Multiplied {
    DType type;
    bool tf32;
  };
  for (const auto& [type, tf32] :
       {Multiplied{DType::f32, false}, {DType::f32, true}, {DType::bf16, false}, {DType::f16, false}}) {
    INFO(to_string(type) << (tf32 ? " as TF32" : ""));
    options.tf32 = tf32;
    int compared = 0;
    for (const auto& descs : {convolution({64, 64, 32, 32}, 64, {3, 1, 1}, false, type),
                              convolution({64, 64, 32, 32}, 128, {3, 2, 1}, false, type),
                              convolution({64, 64, 32, 32}, 128, {1, 2, 0}, false, type),
                              convolution({64, 512, 4, 4}, 512, {3, 1, 1}, false, type),
                              convolution({64, 32, 26, 26}, 64, {3, 1, 0}, true, type),
                              convolution({5, 7, 9, 9}, 13, {3, 2, 1}, true, type), linear(64, 9216, 128, true, type),
                              linear(64, 512, 10, false, type), linear(3, 257, 33, true, type)})
      for (const OpDesc& desc : descs) check_ways(desc, options, compared);
    CHECK(compared > 0);
  }
}

TEST_CASE("cuDNN on a GPU: ways beside a batch normalisation compute what own kernels do") {
  if (const DeviceProbe probe = cuda_backend().probe(); probe.count == 0) DP_SKIP(probe.reason);
  if (cudnn().api == nullptr) DP_SKIP(cudnn().reason);
  CudaOpOptions options;
  options.libraries = std::make_shared<Libraries>();
  int compared = 0;
  for (const DType type : {DType::bf16, DType::f16})
    for (const auto& descs :
         {beside_norm({64, 64, 32, 32}, 64, {3, 1, 1}, type), beside_norm({64, 64, 32, 32}, 128, {3, 2, 1}, type),
          beside_norm({64, 64, 32, 32}, 128, {1, 2, 0}, type), beside_norm({64, 512, 4, 4}, 512, {3, 1, 1}, type)})
      for (const OpDesc& desc : descs) check_ways(desc, options, compared);
  CHECK(compared > 0);
}

TEST_CASE("own kernels on tensor cores compute on a GPU what the ordinary ones do") {
  if (const DeviceProbe probe = cuda_backend().probe(); probe.count == 0) DP_SKIP(probe.reason);
  const CudaOpOptions options = options_of_device(0);
  if (options.compute_capability < 80) DP_SKIP("the first GPU has no compute capability of 8.0 or more");
  struct Layer {
    Shape x;
    std::int64_t out;
    Window window;
  };
  // Cells that stay in shared memory at three widths, cells that fill no whole tile, strides, 1x1, many channels, few.
  const Layer layers[] = {
      {{64, 64, 32, 32}, 64, {3, 1, 1}}, {{8, 64, 56, 56}, 64, {3, 1, 1}},   {{2, 64, 112, 112}, 64, {3, 1, 1}},
      {{5, 64, 9, 9}, 72, {3, 1, 1}},    {{16, 64, 32, 32}, 128, {3, 2, 1}}, {{16, 64, 32, 32}, 128, {1, 2, 0}},
      {{8, 1024, 4, 4}, 64, {3, 1, 1}},  {{64, 512, 4, 4}, 512, {3, 1, 1}},  {{3, 8, 5, 5}, 8, {3, 1, 1}}};
  int compared = 0;
  for (const DType type : {DType::bf16, DType::f16})
    for (const Layer& layer : layers) {
      std::vector<OpDesc> descs = beside_norm(layer.x, layer.out, layer.window, type);
      const auto forward = std::get<NormConv2dForward>(descs.front());
      const TensorDesc &x = forward.x, &w = forward.w, &y = forward.y;
      descs.emplace_back(Conv2dForward{x, w, y, layer.window, true, true});
      descs.emplace_back(Conv2dBackwardData{y, w, x, layer.window});
      descs.emplace_back(Conv2dBackwardWeights{x, y, last(w.shape), layer.window, true});
      for (const OpDesc& desc : descs) check_ways(desc, options, compared, /*tensor_cores=*/true);
    }
  CHECK(compared >= 400);
}
