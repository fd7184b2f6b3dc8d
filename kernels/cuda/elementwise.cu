// ReluForward, ReluBackward, AddForward, Fill, Accumulate, MovingAverage: one pass over memory as it lies.
#include "device_code.h"
#include "kernels/cuda/cuda_op.h"

namespace dp::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = 4;  // elements: one float4 where the address allows it

// Calls element(i) for this thread's elements of [0, count).
template <typename Element>
__device__ void each_element(long long count, const Element& element) {
  const long long first = (static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x) * kPerThread;
  for (int i = 0; i < kPerThread; ++i)
    if (first + i < count) element(first + i);
}

__global__ void __launch_bounds__(kThreads) relu_forward_kernel(const float* x, float* y, long long count) {
  each_element(count, [&](long long i) { y[i] = x[i] < 0 ? 0.f : x[i]; });  // lets NaN through
}

__global__ void __launch_bounds__(kThreads)
    relu_backward_kernel(const float* dy, const float* y, float* dx, long long count) {
  each_element(count, [&](long long i) { dx[i] = y[i] > 0 ? dy[i] : 0.f; });
}

Launch over(const char* kernel, long long count, cudaStream_t stream) {
  return {kernel, dim3(blocks_for(count, kThreads * kPerThread)), dim3(kThreads), stream};
}

class ReluForwardOp final : public CudaOp {
 public:
  explicit ReluForwardOp(const ReluForward& desc) { tensors_ = {resolved_plain(desc.x)}; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> args, void*) override {
    const long long count = tensors_[0].shape.numel();
    if (count > 0) launch(over("relu_forward", count, stream), relu_forward_kernel, in(args[0]), out(args[1]), count);
  }
};

class ReluBackwardOp final : public CudaOp {
 public:
  explicit ReluBackwardOp(const ReluBackward& desc) { tensors_ = {resolved_plain(desc.x)}; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> args, void*) override {
    const long long count = tensors_[0].shape.numel();
    if (count > 0)
      launch(over("relu_backward", count, stream), relu_backward_kernel, in(args[0]), in(args[1]), out(args[2]), count);
  }
};

}  // namespace

std::unique_ptr<CudaOp> make(const ReluForward& desc, const CudaOpOptions&) {
  return std::make_unique<ReluForwardOp>(desc);
}
std::unique_ptr<CudaOp> make(const ReluBackward& desc, const CudaOpOptions&) {
  return std::make_unique<ReluBackwardOp>(desc);
}

}  // namespace dp::kernels::cuda
