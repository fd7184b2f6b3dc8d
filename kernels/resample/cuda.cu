// Resampling of images on GPUs. A thread computes one pack of the result.
#include "kernels/device/cuda/cuda_op.h"
#include "kernels/op_args.h"
#include "kernels/pool/cuda_pool.h"

namespace dp::kernels::cuda {
namespace {

struct Images {
  Image x, y;
  ResampleSide rows, cols;
};

// `packs`: number of packs of y.
template <typename T, int kWidth, bool kChannelsLast>
__global__ void __launch_bounds__(kPoolThreads)
    resample_forward_kernel(const T* x, T* y, Images images, unsigned packs) {
  const unsigned index = blockIdx.x * kPoolThreads + threadIdx.x;
  if (index >= packs) return;
  const Cell cell = cell_of<kWidth, kChannelsLast>(images.y, index);
  const CellReads rows = images.rows.reads(cell.row), cols = images.cols.reads(cell.col);
  Pack<kWidth> sum{};
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 2; ++j) {
      const double share = (i == 0 ? rows.share : rows.next_share) * (j == 0 ? cols.share : cols.next_share);
      if (share == 0) continue;
      const Pack<kWidth> values = load_pack<kWidth>(
          x + place<kChannelsLast>(images.x, {cell.sample, cell.channel, rows.first + i, cols.first + j}));
      for (int k = 0; k < kWidth; ++k) sum.v[k] = fmaf(values.v[k], static_cast<float>(share), sum.v[k]);
    }
  store_pack(y + place<kChannelsLast>(images.y, cell), sum);
}

// `packs`: number of packs of dx.
template <typename T, int kWidth, bool kChannelsLast>
__global__ void __launch_bounds__(kPoolThreads)
    resample_backward_kernel(const T* dy, T* dx, Images images, unsigned packs) {
  const unsigned index = blockIdx.x * kPoolThreads + threadIdx.x;
  if (index >= packs) return;
  const Cell cell = cell_of<kWidth, kChannelsLast>(images.x, index);
  const CellRange rows = images.rows.readers(cell.row), cols = images.cols.readers(cell.col);
  Pack<kWidth> sum{};
  for (int i = rows.first; i <= rows.last; ++i) {
    const double row_share = images.rows.share(i, cell.row);
    if (row_share == 0) continue;
    for (int j = cols.first; j <= cols.last; ++j) {
      const double share = row_share * images.cols.share(j, cell.col);
      if (share == 0) continue;
      const Pack<kWidth> gradient =
          load_pack<kWidth>(dy + place<kChannelsLast>(images.y, {cell.sample, cell.channel, i, j}));
      for (int k = 0; k < kWidth; ++k) sum.v[k] = fmaf(gradient.v[k], static_cast<float>(share), sum.v[k]);
    }
  }
  store_pack(dx + place<kChannelsLast>(images.x, cell), sum);
}

class ResampleOp final : public CudaOp {
 public:
  explicit ResampleOp(const ResampleForward& d) : ResampleOp(d.x.shape, d.y.shape, d.how, false) {
    const TensorDesc x = resolved_channels_last(d.x);
    set_tensors(x, in_order_of(x, d.y));
  }
  explicit ResampleOp(const ResampleBackward& d) : ResampleOp(d.dx.shape, d.dy.shape, d.how, true) {
    const TensorDesc dy = d.dx.layout.any() ? resolved_channels_last(d.dy) : in_order_of(d.dx, d.dy);
    set_tensors(dy, in_order_of(dy, d.dx));
  }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> args, void*) override {
    void *const from = args[0], *const to = args[1];
    if (count_ == 0) return;
    const bool packs = channels_last_ && images_.x.channels % 4 == 0 && take_packs(from, to);
    in_type(tensors_[0].type, [&]<typename T>() {
      in_form(packs, channels_last_, [&]<int kWidth, bool kChannelsLast>() {
        launch(over_cells(backward_ ? "resample_backward" : "resample_forward", count_, kWidth, stream),
               backward_ ? resample_backward_kernel<T, kWidth, kChannelsLast>
                         : resample_forward_kernel<T, kWidth, kChannelsLast>,
               from, to, images_, count_ / kWidth);
      });
    });
  }

 private:
  ResampleOp(const Shape& x, const Shape& y, const Resampling& how, bool backward)
      : images_{image_of(x), image_of(y), resample_side(how, x, y, 2, &HW::h), resample_side(how, x, y, 3, &HW::w)},
        backward_(backward) {}
  void set_tensors(const TensorDesc& from, const TensorDesc& to) {
    tensors_ = {from, to};
    channels_last_ = both_channels_last(from, to);
    index_count(from);
    count_ = index_count(to);
  }

  Images images_;
  bool backward_, channels_last_ = false;
  unsigned count_ = 0;  // elements of the result
};

}  // namespace

std::unique_ptr<CudaOp> make(const ResampleForward& desc, const CudaOpOptions&) {
  return std::make_unique<ResampleOp>(desc);
}
std::unique_ptr<CudaOp> make(const ResampleBackward& desc, const CudaOpOptions&) {
  return std::make_unique<ResampleOp>(desc);
}

}  // namespace dp::kernels::cuda
