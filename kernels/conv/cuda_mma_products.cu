// Conv2dForward and Conv2dBackwardData on tensor cores.
#include "kernels/conv/cuda_gemm_conv.h"
#include "kernels/conv/cuda_mma.h"
#include "kernels/conv/cuda_mma_enqueue.h"
#include "kernels/op_args.h"

namespace dp::kernels::cuda {
namespace {

// Conv2dForward.

class MmaForwardOp final : public CudaOp {
 public:
  MmaForwardOp(const Conv2dForward& d, const Geometry& g, const MmaChoice& choice, int multiprocessors)
      : product_(forward_product(g, d.bias, d.relu)), choice_(choice), multiprocessors_(multiprocessors) {
    tensors_ = {d.x, d.w, d.y};
  }
  std::string implementation() const override { return mma_name(choice_); }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<Conv2dForward>(pointers);
    check_on_16_bytes({args.x, args.w, args.y});
    const auto run = tensors_[0].type == DType::bf16 ? enqueue_mma<BFloat16, false> : enqueue_mma<Float16, false>;
    run(stream, choice_.tile, product_, multiprocessors_, args.x, args.w, args.b, args.y);
  }

 private:
  MmaProduct product_;
  MmaChoice choice_;
  int multiprocessors_;
};

}  // namespace

std::unique_ptr<CudaOp> make_mma(const Conv2dForward& d, const MmaChoice& choice, int multiprocessors) {
  return std::make_unique<MmaForwardOp>(d, geometry_of(d.x, d.w, d.y, d.window), choice, multiprocessors);
}

// Conv2dBackwardData on tensor cores.

namespace {

class MmaDataOp final : public CudaOp {
 public:
  MmaDataOp(const Conv2dBackwardData& d, const Geometry& g, const MmaChoice& choice, int multiprocessors)
      : product_(data_product(g)), choice_(choice), multiprocessors_(multiprocessors) {
    tensors_ = {d.dy, d.w, d.dx};
  }
  std::string implementation() const override { return mma_name(choice_); }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<Conv2dBackwardData>(pointers);
    check_on_16_bytes({args.dy, args.w, args.dx});
    const auto run = tensors_[0].type == DType::bf16 ? enqueue_mma<BFloat16, true> : enqueue_mma<Float16, true>;
    run(stream, choice_.tile, product_, multiprocessors_, args.dy, args.w, nullptr, args.dx);
  }

 private:
  MmaProduct product_;
  MmaChoice choice_;
  int multiprocessors_;
};

}  // namespace

std::unique_ptr<CudaOp> make_mma(const Conv2dBackwardData& d, const MmaChoice& choice, int multiprocessors) {
  return std::make_unique<MmaDataOp>(d, geometry_of(d.dx, d.w, d.dy, d.window), choice, multiprocessors);
}

}  // namespace dp::kernels::cuda
