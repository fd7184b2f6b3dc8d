// cuDNN and cuBLASLt on a real GPU: every way that they offer for the layers of both networks computes what our own kernels do.
#include "kernels/cuda/candidates.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/libraries.h"
#include "kernels/cuda/trial.h"
#include "support/catch.h"

using namespace dp;
using namespace dp::kernels;
using namespace dp::kernels::cuda;

namespace {

TensorDesc last(const Shape& shape) { return {shape, DType::f32, channels_last(shape, DType::f32)}; }
TensorDesc rows(const Shape& shape) { return {shape, DType::f32, plain(shape, DType::f32)}; }

std::vector<OpDesc> convolution(const Shape& x_shape, std::int64_t out, const Window& window, bool fused) {
  const std::int64_t edge = (x_shape[2] + 2 * window.padding - window.kernel) / window.stride + 1;
  const TensorDesc x = last(x_shape), w = last({out, x_shape[1], window.kernel, window.kernel}),
                   y = last({x_shape[0], out, edge, edge});
  return {Conv2dForward{x, w, y, window, fused, fused}, Conv2dBackwardData{y, w, x, window},
          Conv2dBackwardWeights{x, y, w, window, fused}};
}

std::vector<OpDesc> linear(std::int64_t batch, std::int64_t features, std::int64_t out, bool relu) {
  const TensorDesc x = rows({batch, features}), w = rows({out, features}), y = rows({batch, out});
  return {LinearForward{x, w, y, true, relu}, LinearBackwardData{y, w, x}, LinearBackwardWeights{x, y, w, true}};
}

// Each way of a library that is a way, and those that turned out none.
void check_ways(const OpDesc& desc, const CudaOpOptions& options, int& compared) {
  const auto pinned = std::visit([&](const auto& d) { return make(d, options); }, desc);
  std::vector<std::unique_ptr<CudaOp>> made;
  std::vector<CudaOp*> ops{pinned.get()};
  for (const Way& way : ways_beside(desc, *pinned, options))
    if (!way.name.starts_with("own:"))
      if (auto op = way.make()) ops.push_back(made.emplace_back(std::move(op)).get());
  const std::vector<double> times = try_ops(trial_arguments(desc), ops);
  for (std::size_t i = 1; i < ops.size(); ++i) {
    INFO(name_of(desc) << " by " << ops[i]->implementation());
    CHECK(times[i] < kUnfit);
    ++compared;
  }
}

}  // namespace

TEST_CASE("libraries on a GPU compute what own kernels do, with float32 and with TF32") {
  if (const DeviceProbe probe = cuda_backend().probe(); probe.count == 0) DP_SKIP(probe.reason);
  if (cudnn().api == nullptr && cublaslt().api == nullptr) DP_SKIP(cudnn().reason + "; " + cublaslt().reason);
  CudaOpOptions options;
  options.libraries = std::make_shared<Libraries>();
  int compared = 0;
  for (const bool tf32 : {false, true}) {
    options.tf32 = tf32;
    for (const auto& descs :
         {convolution({64, 64, 32, 32}, 64, {3, 1, 1}, false), convolution({64, 64, 32, 32}, 128, {3, 2, 1}, false),
          convolution({64, 64, 32, 32}, 128, {1, 2, 0}, false), convolution({64, 512, 4, 4}, 512, {3, 1, 1}, false),
          convolution({64, 32, 26, 26}, 64, {3, 1, 0}, true), convolution({5, 7, 9, 9}, 13, {3, 2, 1}, true),
          linear(64, 9216, 128, true), linear(64, 512, 10, false), linear(3, 257, 33, true)})
      for (const OpDesc& desc : descs) check_ways(desc, options, compared);
  }
  CHECK(compared > 0);
}
