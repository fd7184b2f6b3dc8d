// NormConv2dBackwardData on tensor cores. For each tile of the data gradient, a block writes
// dz and the tile's partial sums. The last block adds the partial sums in a fixed order.
#include "kernels/conv/cuda_gemm_conv.h"
#include "kernels/conv/cuda_mma.h"
#include "kernels/conv/cuda_mma_norm.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/op_args.h"

namespace dp::kernels::cuda {
namespace {

class MmaNormDataOp final : public CudaOp {
 public:
  MmaNormDataOp(const NormConv2dBackwardData& d, const Geometry& g, const MmaChoice& choice, int multiprocessors)
      : desc_(d), product_(data_product(g)), choice_(choice), multiprocessors_(multiprocessors) {
    for (int part = 0; part < product_.count; ++part)
      tiles_ += with_tile(choice.tile, [&]<typename Tile>() { return tiles_of<Tile>(product_.parts[part]); });
    const int cols = with_tile(choice.tile, [&]<typename Tile>() { return Tile::kCols; });
    counters_ = zeroed_counters(static_cast<unsigned>(1 + sum_groups(tiles_)) * blocks_for(numbers() / 2, cols));
    tensors_ = {d.dy, d.w, d.dx};
  }
  std::size_t workspace_bytes() const override {
    return static_cast<std::size_t>(tiles_ + sum_groups(tiles_)) * static_cast<std::size_t>(numbers()) * sizeof(double);
  }
  std::string implementation() const override { return mma_fused_name(choice_); }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<NormConv2dBackwardData>(pointers);
    void* const y = desc_.relu && !desc_.renormalize ? args.y : nullptr;
    void* const dy2 = desc_.add ? args.dy2 : nullptr;
    check_on_16_bytes({args.dy, args.w, dy2, args.x, y, args.dz});
    auto* const partials = static_cast<double*>(workspace);
    double* const groups = partials + static_cast<std::size_t>(tiles_) * static_cast<std::size_t>(numbers());
    const auto* const stats = static_cast<const double*>(args.stats);
    const NormDataArgs all{.dy = args.dy,
                           .weights = args.w,
                           .norm = {.dy2 = static_cast<const uint4*>(dy2),
                                    .x = static_cast<const uint4*>(args.x),
                                    .y = static_cast<const uint4*>(y),
                                    .stats = stats,
                                    .weight = desc_.renormalize ? in(args.weight) : nullptr,
                                    .bias = desc_.renormalize ? in(args.bias) : nullptr,
                                    .relu = desc_.relu},
                           .dz = args.dz,
                           .sums = {.partials = partials,
                                    .groups = groups,
                                    .counters = static_cast<unsigned*>(counters_.get()),
                                    .end = {stats, static_cast<double*>(args.sums), out(args.dweight), out(args.dbias)},
                                    .tiles = tiles_}};
    const auto run = tensors_[0].type == DType::bf16 ? enqueue_norm_data<BFloat16> : enqueue_norm_data<Float16>;
    run(stream, choice_.tile, product_, multiprocessors_, all);
  }

 private:
  int numbers() const { return 2 * product_.out_chunks * kChunk; }  // doubles in the partial sums of a tile

  NormConv2dBackwardData desc_;
  MmaProduct product_;
  int tiles_ = 0;
  MmaChoice choice_;
  int multiprocessors_;
  DeviceMemory counters_;
};

}  // namespace

std::unique_ptr<CudaOp> make_mma(const NormConv2dBackwardData& d, const MmaChoice& choice, int multiprocessors) {
  return std::make_unique<MmaNormDataOp>(d, geometry_of(d.dx, d.w, d.dy, d.window), choice, multiprocessors);
}

}  // namespace dp::kernels::cuda
