// MaxPool2dForward with fused ReLU and dropout, and its gradient. A thread computes one pack
// of y or dx. In backward it gathers the gradients of all windows that cover the pack.
#include "kernels/cuda/ops/philox.h"
#include "kernels/cuda/ops/pool_op.h"
#include "kernels/op_args.h"

namespace dp::kernels::cuda {
namespace {

template <int kWidth>
__device__ __forceinline__ void store_mask(std::uint8_t* mask, const int (&cells)[kWidth]) {
  const auto byte = [&](int k) { return static_cast<std::uint8_t>(cells[k]); };
  if constexpr (kWidth == 4)
    *reinterpret_cast<uchar4*>(mask) = make_uchar4(byte(0), byte(1), byte(2), byte(3));
  else
    *mask = byte(0);
}

template <int kWidth>
__device__ __forceinline__ void load_mask(const std::uint8_t* mask, int (&cells)[kWidth]) {
  if constexpr (kWidth == 4) {
    const uchar4 four = *reinterpret_cast<const uchar4*>(mask);
    cells[0] = four.x, cells[1] = four.y, cells[2] = four.z, cells[3] = four.w;
  } else {
    cells[0] = *mask;
  }
}

// `mask` may be null. `samples` and `inputs` are read only with dropout. `packs`: number of packs of y.
template <typename T, int kWidth, bool kChannelsLast, bool kDropout>
__global__ void __launch_bounds__(kPoolThreads)
    max_pool_forward_kernel(const T* x, T* y, std::uint8_t* mask, const std::int64_t* samples, const StepInputs* inputs,
                            Pool pool, unsigned packs, bool relu, Dropping dropping) {
  const unsigned index = blockIdx.x * kPoolThreads + threadIdx.x;
  if (index >= packs) return;
  const Cell cell = cell_of<kWidth, kChannelsLast>(pool.pooled, index);
  const int top = cell.row * pool.stride - pool.padding, left = cell.col * pool.stride - pool.padding;
  const int first_row = max(0, -top), last_row = min(pool.kernel_rows, static_cast<int>(pool.large.rows) - top);
  const int first_col = max(0, -left), last_col = min(pool.kernel_cols, static_cast<int>(pool.large.cols) - left);

  Pack<kWidth> best;
  int cells[kWidth];
  for (int k = 0; k < kWidth; ++k) {
    best.v[k] = -INFINITY;
    cells[k] = first_row * pool.kernel_cols + first_col;
  }
  for (int row = first_row; row < last_row; ++row) {
    const T* from = x + place<kChannelsLast>(pool.large, {cell.sample, cell.channel, top + row, left + first_col});
    for (int col = first_col; col < last_col; ++col, from += col_step<kChannelsLast>(pool.large)) {
      const Pack<kWidth> values = load_pack<kWidth>(from);
      for (int k = 0; k < kWidth; ++k)
        if (best.v[k] == best.v[k] && !(values.v[k] <= best.v[k])) {  // NaN is greater than any number
          best.v[k] = values.v[k];
          cells[k] = row * pool.kernel_cols + col;
        }
    }
  }
  for (int k = 0; k < kWidth; ++k)
    if (relu && best.v[k] <= 0) best.v[k] = 0, cells[k] = kPoolStopped;
  if constexpr (kDropout) {
    const std::int64_t sample = samples[cell.sample];
    for (int k = 0; k < kWidth; ++k) {
      const unsigned element = ((cell.channel + k) * pool.pooled.rows + cell.row) * pool.pooled.cols + cell.col;
      const bool kept = dropout_keeps(*inputs, dropping, sample, element);
      best.v[k] = kept ? best.v[k] * dropping.scale : 0.f;
      if (!kept) cells[k] = kPoolStopped;
    }
  }
  const long long at = place<kChannelsLast>(pool.pooled, cell);
  store_pack(y + at, best);
  if (mask) store_mask(mask + at, cells);
}

// `packs`: number of packs of dx.
template <typename T, int kWidth, bool kChannelsLast>
__global__ void __launch_bounds__(kPoolThreads)
    max_pool_backward_kernel(const T* dy, const std::uint8_t* mask, T* dx, Pool pool, unsigned packs, float scale) {
  const unsigned index = blockIdx.x * kPoolThreads + threadIdx.x;
  if (index >= packs) return;
  const Cell cell = cell_of<kWidth, kChannelsLast>(pool.large, index);
  const Windows rows = windows_over(cell.row, pool.kernel_rows, pool.stride, pool.padding, pool.pooled.rows);
  const Windows cols = windows_over(cell.col, pool.kernel_cols, pool.stride, pool.padding, pool.pooled.cols);
  Pack<kWidth> sum{};
  for (int i = rows.first; i <= rows.last; ++i)
    for (int j = cols.first; j <= cols.last; ++j) {
      const long long at = place<kChannelsLast>(pool.pooled, {cell.sample, cell.channel, i, j});
      const int own = (cell.row - i * pool.stride + pool.padding) * pool.kernel_cols +  //
                      cell.col - j * pool.stride + pool.padding;
      int cells[kWidth];
      load_mask(mask + at, cells);
      const Pack<kWidth> gradient = load_pack<kWidth>(dy + at);
      for (int k = 0; k < kWidth; ++k)
        if (cells[k] == own) sum.v[k] += gradient.v[k] * scale;
    }
  store_pack(dx + place<kChannelsLast>(pool.large, cell), sum);
}

class MaxPoolForwardOp final : public PoolOp {
 public:
  explicit MaxPoolForwardOp(const MaxPool2dForward& desc)
      : PoolOp(Direction::forward, desc.x, desc.y, desc.window),
        relu_(desc.relu),
        training_(desc.training),
        drops_(desc.training && desc.dropout) {
    if (drops_) dropping_ = dropping(*desc.dropout);
  }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<MaxPool2dForward>(pointers);
    if (count_ == 0) return;
    in_form_of(in_packs(args.x, args.y, args.mask), [&]<typename T, int kWidth, bool kChannelsLast>() {
      launch(over_cells("max_pool_forward", count_, kWidth, stream),
             drops_ ? max_pool_forward_kernel<T, kWidth, kChannelsLast, true>
                    : max_pool_forward_kernel<T, kWidth, kChannelsLast, false>,
             args.x, args.y, training_ ? args.mask : nullptr, args.samples, args.inputs, pool_, count_ / kWidth, relu_,
             dropping_);
    });
  }

 private:
  bool relu_, training_, drops_;
  Dropping dropping_;
};

class MaxPoolBackwardOp final : public PoolOp {
 public:
  explicit MaxPoolBackwardOp(const MaxPool2dBackward& desc)
      : PoolOp(Direction::backward, desc.dx, desc.dy, desc.window) {
    if (desc.dropout) scale_ = dropping(*desc.dropout).scale;
  }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<MaxPool2dBackward>(pointers);
    if (count_ == 0) return;
    in_form_of(in_packs(args.dy, args.mask, args.dx), [&]<typename T, int kWidth, bool kChannelsLast>() {
      launch(over_cells("max_pool_backward", count_, kWidth, stream),
             max_pool_backward_kernel<T, kWidth, kChannelsLast>, args.dy, args.mask, args.dx, pool_, count_ / kWidth,
             scale_);
    });
  }

 private:
  float scale_ = 1;
};

}  // namespace

std::unique_ptr<CudaOp> make(const MaxPool2dForward& desc, const CudaOpOptions&) {
  return std::make_unique<MaxPoolForwardOp>(desc);
}
std::unique_ptr<CudaOp> make(const MaxPool2dBackward& desc, const CudaOpOptions&) {
  return std::make_unique<MaxPoolBackwardOp>(desc);
}

}  // namespace dp::kernels::cuda
