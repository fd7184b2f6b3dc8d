#include "kernels/device/cuda/cuda_op.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/elementwise/cuda.h"
#include "kernels/op_args.h"

namespace dp::kernels::cuda {
namespace {

template <int kWidth, typename T>
__global__ void __launch_bounds__(kElementThreads) softsign_forward_kernel(const T* x, T* y, long long count) {
  map_elements<kWidth>(x, y, count, [](float value) { return value / (1.f + fabsf(value)); });
}

template <int kWidth, typename T>
__global__ void __launch_bounds__(kElementThreads)
    softsign_backward_kernel(const T* dy, const T* x, T* dx, long long count) {
  map_elements<kWidth>(dy, x, dx, count, [](float gradient, float value) {
    return gradient / ((1.f + fabsf(value)) * (1.f + fabsf(value)));
  });
}

class SoftsignForwardOp final : public CudaOp {
 public:
  explicit SoftsignForwardOp(const SoftsignForward& desc) { tensors_ = {resolved_channels_last(desc.x)}; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<SoftsignForward>(pointers);
    const long long count = tensors_[0].shape.numel();
    const bool packs = take_packs(args.x, args.y);
    if (count == 0) return;
    in_type(tensors_[0].type, [&]<typename T>() {
      launch(over_elements("softsign_forward", count, packs, stream),
             packs ? softsign_forward_kernel<4, T> : softsign_forward_kernel<1, T>, args.x, args.y, count);
    });
  }
};

class SoftsignBackwardOp final : public CudaOp {
 public:
  explicit SoftsignBackwardOp(const SoftsignBackward& desc) { tensors_ = {resolved_channels_last(desc.x)}; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<SoftsignBackward>(pointers);
    const long long count = tensors_[0].shape.numel();
    const bool packs = take_packs(args.dy, args.x, args.dx);
    if (count == 0) return;
    in_type(tensors_[0].type, [&]<typename T>() {
      launch(over_elements("softsign_backward", count, packs, stream),
             packs ? softsign_backward_kernel<4, T> : softsign_backward_kernel<1, T>, args.dy, args.x, args.dx, count);
    });
  }
};

}  // namespace

std::unique_ptr<CudaOp> make(const SoftsignForward& desc, const CudaOpOptions&) {
  return std::make_unique<SoftsignForwardOp>(desc);
}
std::unique_ptr<CudaOp> make(const SoftsignBackward& desc, const CudaOpOptions&) {
  return std::make_unique<SoftsignBackwardOp>(desc);
}

}  // namespace dp::kernels::cuda
