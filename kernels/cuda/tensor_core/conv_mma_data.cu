// Conv2dBackwardData on tensor cores.
#include "kernels/cuda/gemm/conv_geometry.h"
#include "kernels/cuda/tensor_core/conv_mma_enqueue.h"
#include "kernels/cuda/tensor_core/conv_mma_op.h"
#include "kernels/op_args.h"

namespace dp::kernels::cuda {
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
