#include "kernels/device/cuda/check.h"
#include "kernels/device/cuda/cuda_op.h"
#include "kernels/elementwise/cuda.h"
#include "kernels/op_args.h"

namespace dp::kernels::cuda {
namespace {

constexpr float kSqrtHalf = 0.70710678f, kPeak = 0.39894228f;  // 1/sqrt(2), 1/sqrt(2 pi)

__device__ __forceinline__ float below(float x) { return 0.5f * (1.f + erff(x * kSqrtHalf)); }

template <int kWidth, typename T>
__global__ void __launch_bounds__(kElementThreads) gelu_forward_kernel(const T* x, T* y, long long count) {
  map_elements<kWidth>(x, y, count, [](float value) { return value * below(value); });
}

template <int kWidth, typename T>
__global__ void __launch_bounds__(kElementThreads)
    gelu_backward_kernel(const T* dy, const T* x, T* dx, long long count) {
  map_elements<kWidth>(dy, x, dx, count, [](float gradient, float value) {
    return gradient * (below(value) + value * kPeak * expf(-0.5f * value * value));
  });
}

class GeluForwardOp final : public CudaOp {
 public:
  explicit GeluForwardOp(const GeluForward& desc) { tensors_ = {resolved_channels_last(desc.x)}; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<GeluForward>(pointers);
    const long long count = tensors_[0].shape.numel();
    const bool packs = take_packs(args.x, args.y);
    if (count == 0) return;
    in_type(tensors_[0].type, [&]<typename T>() {
      launch(over_elements("gelu_forward", count, packs, stream),
             packs ? gelu_forward_kernel<4, T> : gelu_forward_kernel<1, T>, args.x, args.y, count);
    });
  }
};

class GeluBackwardOp final : public CudaOp {
 public:
  explicit GeluBackwardOp(const GeluBackward& desc) { tensors_ = {resolved_channels_last(desc.x)}; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<GeluBackward>(pointers);
    const long long count = tensors_[0].shape.numel();
    const bool packs = take_packs(args.dy, args.x, args.dx);
    if (count == 0) return;
    in_type(tensors_[0].type, [&]<typename T>() {
      launch(over_elements("gelu_backward", count, packs, stream),
             packs ? gelu_backward_kernel<4, T> : gelu_backward_kernel<1, T>, args.dy, args.x, args.dx, count);
    });
  }
};

}  // namespace

std::unique_ptr<CudaOp> make(const GeluForward& desc, const CudaOpOptions&) {
  return std::make_unique<GeluForwardOp>(desc);
}
std::unique_ptr<CudaOp> make(const GeluBackward& desc, const CudaOpOptions&) {
  return std::make_unique<GeluBackwardOp>(desc);
}

}  // namespace dp::kernels::cuda
