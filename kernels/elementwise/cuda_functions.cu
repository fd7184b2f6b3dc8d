// Activation functions on GPUs.
#include "kernels/device/cuda/cuda_op.h"
#include "kernels/device/cuda/pack.h"
#include "kernels/elementwise/cuda.h"
#include "kernels/op_args.h"

namespace dp::kernels::cuda {
namespace {

template <int kWidth, typename F, typename T>
__global__ void __launch_bounds__(kElementThreads)
    function_forward_kernel(const T* x, T* y, long long count, F function) {
  map_elements<kWidth>(x, y, count, [=](float value) { return function.value(value); });
}

template <int kWidth, typename F, typename T>
__global__ void __launch_bounds__(kElementThreads)
    function_backward_kernel(const T* dy, const T* x, T* dx, long long count, F function) {
  map_elements<kWidth>(dy, x, dx, count,
                       [=](float gradient, float value) { return gradient * function.derivative(value); });
}

class FunctionForwardOp final : public CudaOp {
 public:
  explicit FunctionForwardOp(const FunctionForward& desc) : function_(desc.function) {
    tensors_ = {resolved_channels_last(desc.x)};
  }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<FunctionForward>(pointers);
    const long long count = tensors_[0].shape.numel();
    const bool packs = take_packs(args.x, args.y);
    if (count == 0) return;
    std::visit(
        [&]<typename F>(const F& function) {
          in_type(tensors_[0].type, [&]<typename T>() {
            launch(over_elements("function_forward", count, packs, stream),
                   packs ? function_forward_kernel<4, F, T> : function_forward_kernel<1, F, T>, args.x, args.y, count,
                   function);
          });
        },
        function_);
  }

 private:
  Function function_;
};

class FunctionBackwardOp final : public CudaOp {
 public:
  explicit FunctionBackwardOp(const FunctionBackward& desc) : function_(desc.function) {
    tensors_ = {resolved_channels_last(desc.x)};
  }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<FunctionBackward>(pointers);
    const long long count = tensors_[0].shape.numel();
    const bool packs = take_packs(args.dy, args.x, args.dx);
    if (count == 0) return;
    std::visit(
        [&]<typename F>(const F& function) {
          in_type(tensors_[0].type, [&]<typename T>() {
            launch(over_elements("function_backward", count, packs, stream),
                   packs ? function_backward_kernel<4, F, T> : function_backward_kernel<1, F, T>, args.dy, args.x,
                   args.dx, count, function);
          });
        },
        function_);
  }

 private:
  Function function_;
};

}  // namespace

std::unique_ptr<CudaOp> make(const FunctionForward& desc, const CudaOpOptions&) {
  return std::make_unique<FunctionForwardOp>(desc);
}
std::unique_ptr<CudaOp> make(const FunctionBackward& desc, const CudaOpOptions&) {
  return std::make_unique<FunctionBackwardOp>(desc);
}

}  // namespace dp::kernels::cuda
