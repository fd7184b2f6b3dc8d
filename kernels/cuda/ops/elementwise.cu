// ReluForward, ReluBackward, AddForward, Fill, Accumulate: one pass over contiguous memory, in any element order.
#include "kernels/cuda/ops/elementwise.h"
#include "kernels/op_args.h"

#include "kernels/cuda/cuda_op.h"
#include "kernels/cuda/runtime/check.h"

namespace dp::kernels::cuda {
namespace {

template <int kWidth, typename T>
__global__ void __launch_bounds__(kElementThreads) relu_forward_kernel(const T* x, T* y, long long count) {
  map_elements<kWidth>(x, y, count, [](float value) { return value < 0 ? 0.f : value; });  // lets NaN through
}

template <int kWidth, typename T>
__global__ void __launch_bounds__(kElementThreads)
    relu_backward_kernel(const T* dy, const T* y, T* dx, long long count, float scale) {
  map_elements<kWidth>(dy, y, dx, count,
                       [=](float gradient, float value) { return value > 0 ? gradient * scale : 0.f; });
}

template <int kWidth, typename T>
__global__ void __launch_bounds__(kElementThreads)
    add_kernel(const T* a, const T* b, T* y, long long count, bool relu) {
  map_elements<kWidth>(a, b, y, count, [=](float first, float second) {
    const float sum = first + second;
    return relu && sum < 0 ? 0.f : sum;
  });
}

template <int kWidth>
__global__ void __launch_bounds__(kElementThreads) accumulate_kernel(const float* x, float* y, long long count) {
  map_elements<kWidth>(x, y, y, count, [](float added, float sum) { return sum + added; });
}

class ReluForwardOp final : public CudaOp {
 public:
  explicit ReluForwardOp(const ReluForward& desc) { tensors_ = {resolved_channels_last(desc.x)}; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<ReluForward>(pointers);
    const long long count = tensors_[0].shape.numel();
    const bool packs = take_packs(args.x, args.y);
    if (count == 0) return;
    in_type(tensors_[0].type, [&]<typename T>() {
      launch(over_elements("relu_forward", count, packs, stream),
             packs ? relu_forward_kernel<4, T> : relu_forward_kernel<1, T>, args.x, args.y, count);
    });
  }
};

class ReluBackwardOp final : public CudaOp {
 public:
  explicit ReluBackwardOp(const ReluBackward& desc) : scale_(desc.scale) {
    tensors_ = {resolved_channels_last(desc.x)};
  }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<ReluBackward>(pointers);
    const long long count = tensors_[0].shape.numel();
    const bool packs = take_packs(args.dy, args.y, args.dx);
    if (count == 0) return;
    in_type(tensors_[0].type, [&]<typename T>() {
      launch(over_elements("relu_backward", count, packs, stream),
             packs ? relu_backward_kernel<4, T> : relu_backward_kernel<1, T>, args.dy, args.y, args.dx, count, scale_);
    });
  }

 private:
  float scale_;
};

class AddOp final : public CudaOp {
 public:
  explicit AddOp(const AddForward& desc) : relu_(desc.relu) { tensors_ = {resolved_channels_last(desc.x)}; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<AddForward>(pointers);
    const long long count = tensors_[0].shape.numel();
    const bool packs = take_packs(args.a, args.b, args.y);
    if (count == 0) return;
    in_type(tensors_[0].type, [&]<typename T>() {
      launch(over_elements("add", count, packs, stream), packs ? add_kernel<4, T> : add_kernel<1, T>, args.a, args.b,
             args.y, count, relu_);
    });
  }

 private:
  bool relu_;
};

class FillOp final : public CudaOp {
 public:
  explicit FillOp(const Fill& desc) : bytes_(desc.bytes) {}
  std::string implementation() const override { return "memset"; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<Fill>(pointers);
    if (bytes_ > 0 && !KernelLoading::active())
      check(cudaMemsetAsync(args.dst, 0, bytes_, stream), "filling memory with zeros");
  }

 private:
  std::size_t bytes_;
};

class AccumulateOp final : public CudaOp {
 public:
  explicit AccumulateOp(const Accumulate& desc) : count_(desc.count) {}

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<Accumulate>(pointers);
    const bool packs = take_packs(args.x, args.y);
    if (count_ > 0)
      launch(over_elements("accumulate", count_, packs, stream), packs ? accumulate_kernel<4> : accumulate_kernel<1>,
             args.x, args.y, count_);
  }

 private:
  long long count_;
};

}  // namespace

std::unique_ptr<CudaOp> make(const ReluForward& desc, const CudaOpOptions&) {
  return std::make_unique<ReluForwardOp>(desc);
}
std::unique_ptr<CudaOp> make(const ReluBackward& desc, const CudaOpOptions&) {
  return std::make_unique<ReluBackwardOp>(desc);
}
std::unique_ptr<CudaOp> make(const AddForward& desc, const CudaOpOptions&) { return std::make_unique<AddOp>(desc); }
std::unique_ptr<CudaOp> make(const Fill& desc, const CudaOpOptions&) { return std::make_unique<FillOp>(desc); }
std::unique_ptr<CudaOp> make(const Accumulate& desc, const CudaOpOptions&) {
  return std::make_unique<AccumulateOp>(desc);
}

}  // namespace dp::kernels::cuda
