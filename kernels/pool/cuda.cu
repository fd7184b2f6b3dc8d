// Pooling on GPUs.
#include "kernels/device/cuda/block.h"
#include "kernels/device/cuda/cuda_op.h"
#include "kernels/device/cuda/philox.h"
#include "kernels/op_args.h"
#include "kernels/pool/cuda_pool.h"

namespace dp::kernels::cuda {
namespace {

// Base class of the pooling ops: layouts, geometry, and choice of the kernel's form.
class PoolOp : public CudaOp {
 protected:
  // tensors_ are x and y in forward, dy and dx in backward.
  enum class Direction { forward, backward };
  PoolOp(Direction direction, const TensorDesc& large, const TensorDesc& pooled, const Window& window) {
    if (direction == Direction::forward) {
      const TensorDesc x = resolved_channels_last(large);
      tensors_ = {x, in_order_of(x, pooled)};
    } else {
      const TensorDesc dy = large.layout.any() ? resolved_channels_last(pooled) : in_order_of(large, pooled);
      tensors_ = {dy, in_order_of(dy, large)};
    }
    channels_last_ = both_channels_last(tensors_[0], tensors_[1]);
    pool_ = {image_of(large.shape), image_of(pooled.shape), pool_side(window, &HW::h), pool_side(window, &HW::w)};
    index_count(large);
    count_ = index_count(tensors_[1]);
  }

  // Whether the kernel can use packs of four for tensors at these addresses.
  template <typename... Pointers>
  bool in_packs(Pointers... pointers) const {
    return channels_last_ && pool_.large.channels % 4 == 0 && take_packs(pointers...);
  }

  // Calls run.operator()<T, kWidth, kChannelsLast>().
  template <typename Run>
  void in_form_of(bool packs, const Run& run) const {
    in_type(tensors_[0].type, [&]<typename T>() {
      in_form(packs, channels_last_,
              [&]<int kWidth, bool kChannelsLast>() { run.template operator()<T, kWidth, kChannelsLast>(); });
    });
  }

  bool channels_last_ = false;
  Pool pool_;
  unsigned count_ = 0;  // elements of the output
};

// MaxPool2dForward with fused ReLU and dropout, and its gradient. A thread computes one pack
// of y or dx. In backward it gathers the gradients of all windows that cover the pack.

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
  const int top = cell.row * pool.rows.stride - pool.rows.padding,
            left = cell.col * pool.cols.stride - pool.cols.padding;
  const PoolRange rows = cells_inside(pool.rows, top, pool.large.rows),
                  cols = cells_inside(pool.cols, left, pool.large.cols);
  const long long step = col_step<kChannelsLast>(pool.large) * pool.cols.dilation;

  Pack<kWidth> best;
  int cells[kWidth];
  for (int k = 0; k < kWidth; ++k) {
    best.v[k] = -INFINITY;
    cells[k] = rows.first * pool.cols.kernel + cols.first;
  }
  for (int row = rows.first; row <= rows.last; ++row) {
    const T* from = x + place<kChannelsLast>(pool.large, {cell.sample, cell.channel, top + row * pool.rows.dilation,
                                                          left + cols.first * pool.cols.dilation});
    for (int col = cols.first; col <= cols.last; ++col, from += step) {
      const Pack<kWidth> values = load_pack<kWidth>(from);
      for (int k = 0; k < kWidth; ++k)
        if (best.v[k] == best.v[k] && !(values.v[k] <= best.v[k])) {  // NaN is greater than any number
          best.v[k] = values.v[k];
          cells[k] = row * pool.cols.kernel + col;
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
  const PoolRange rows = windows_over(pool.rows, cell.row, pool.pooled.rows);
  const PoolRange cols = windows_over(pool.cols, cell.col, pool.pooled.cols);
  const bool dilated = pool.rows.dilation > 1 || pool.cols.dilation > 1;
  Pack<kWidth> sum{};
  for (int i = rows.first; i <= rows.last; ++i)
    for (int j = cols.first; j <= cols.last; ++j) {
      int row = cell.row - i * pool.rows.stride + pool.rows.padding,
          col = cell.col - j * pool.cols.stride + pool.cols.padding;
      if (dilated) {
        if (row % pool.rows.dilation != 0 || col % pool.cols.dilation != 0) continue;
        row /= pool.rows.dilation, col /= pool.cols.dilation;
      }
      const int own = row * pool.cols.kernel + col;
      const long long at = place<kChannelsLast>(pool.pooled, {cell.sample, cell.channel, i, j});
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

// AvgPool2dForward and its gradient. A thread computes one pack of the output. Over whole images, forward adds the
// pixels with a block per tile of channels (channels last) or a warp per plane (row-major).

namespace {

__device__ __forceinline__ int count(const PoolRange& range) { return range.last - range.first + 1; }

// `packs`: number of packs of y.
template <typename T, int kWidth, bool kChannelsLast, bool kAdaptive>
__global__ void __launch_bounds__(kPoolThreads) avg_pool_forward_kernel(const T* x, T* y, Pool pool, unsigned packs) {
  const unsigned index = blockIdx.x * kPoolThreads + threadIdx.x;
  if (index >= packs) return;
  const Cell cell = cell_of<kWidth, kChannelsLast>(pool.pooled, index);
  PoolRange rows, cols;
  int cells = pool.rows.kernel * pool.cols.kernel;
  if constexpr (kAdaptive) {
    rows = adaptive_range(static_cast<unsigned>(cell.row), pool.large.rows, pool.pooled.rows);
    cols = adaptive_range(static_cast<unsigned>(cell.col), pool.large.cols, pool.pooled.cols);
    cells = count(rows) * count(cols);
  } else {
    const int top = cell.row * pool.rows.stride - pool.rows.padding,
              left = cell.col * pool.cols.stride - pool.cols.padding;
    rows = {max(0, top), min(top + pool.rows.kernel, static_cast<int>(pool.large.rows)) - 1};
    cols = {max(0, left), min(left + pool.cols.kernel, static_cast<int>(pool.large.cols)) - 1};
  }
  Pack<kWidth> sum{};
  for (int row = rows.first; row <= rows.last; ++row) {
    const T* from = x + place<kChannelsLast>(pool.large, {cell.sample, cell.channel, row, cols.first});
    for (int col = cols.first; col <= cols.last; ++col, from += col_step<kChannelsLast>(pool.large)) {
      const Pack<kWidth> values = load_pack<kWidth>(from);
      for (int k = 0; k < kWidth; ++k) sum.v[k] += values.v[k];
    }
  }
  for (float& value : sum.v) value /= static_cast<float>(cells);
  store_pack(y + place<kChannelsLast>(pool.pooled, cell), sum);
}

// `packs`: number of packs of dx.
template <typename T, int kWidth, bool kChannelsLast, bool kAdaptive>
__global__ void __launch_bounds__(kPoolThreads)
    avg_pool_backward_kernel(const T* dy, T* dx, Pool pool, unsigned packs) {
  const unsigned index = blockIdx.x * kPoolThreads + threadIdx.x;
  if (index >= packs) return;
  const Cell cell = cell_of<kWidth, kChannelsLast>(pool.large, index);
  const auto row = static_cast<unsigned>(cell.row), col = static_cast<unsigned>(cell.col);
  PoolRange rows, cols;
  if constexpr (kAdaptive)
    rows = adaptive_range(row, pool.pooled.rows, pool.large.rows),
    cols = adaptive_range(col, pool.pooled.cols, pool.large.cols);
  else
    rows = windows_over(pool.rows, cell.row, pool.pooled.rows),
    cols = windows_over(pool.cols, cell.col, pool.pooled.cols);
  Pack<kWidth> sum{};
  for (int i = rows.first; i <= rows.last; ++i)
    for (int j = cols.first; j <= cols.last; ++j) {
      const Pack<kWidth> gradient =
          load_pack<kWidth>(dy + place<kChannelsLast>(pool.pooled, {cell.sample, cell.channel, i, j}));
      float cells = 1;
      if constexpr (kAdaptive)
        cells = static_cast<float>(count(adaptive_range(static_cast<unsigned>(i), pool.large.rows, pool.pooled.rows)) *
                                   count(adaptive_range(static_cast<unsigned>(j), pool.large.cols, pool.pooled.cols)));
      for (int k = 0; k < kWidth; ++k) sum.v[k] += gradient.v[k] / cells;
    }
  if constexpr (!kAdaptive)
    for (float& value : sum.v) value /= static_cast<float>(pool.rows.kernel * pool.cols.kernel);
  store_pack(dx + place<kChannelsLast>(pool.large, cell), sum);
}

// Channels last, over whole images: kLanes threads each take a pack of channels, and
// kPixelRows rows of threads share the pixels.
constexpr unsigned kLanes = 32, kPixelRows = kPoolThreads / kLanes;

template <int kWidth, typename T>
__global__ void __launch_bounds__(kPoolThreads)
    global_avg_pool_channels_last_kernel(const T* x, T* y, unsigned channels, unsigned pixels, unsigned tiles) {
  DP_SHARED(float, sums, [kPixelRows][kLanes * kWidth]);
  const unsigned lane = threadIdx.x % kLanes, first = threadIdx.x / kLanes;
  const unsigned sample = blockIdx.x / tiles, channel = (blockIdx.x % tiles * kLanes + lane) * kWidth;
  Pack<kWidth> sum{};
  if (channel < channels) {
    const T* from = x + static_cast<long long>(sample) * pixels * channels + channel;
    for (unsigned pixel = first; pixel < pixels; pixel += kPixelRows) {
      const Pack<kWidth> values = load_pack<kWidth>(from + static_cast<long long>(pixel) * channels);
      for (int k = 0; k < kWidth; ++k) sum.v[k] += values.v[k];
    }
  }
  for (int k = 0; k < kWidth; ++k) sums[first][lane * kWidth + k] = sum.v[k];
  __syncthreads();
  if (first != 0 || channel >= channels) return;
  for (unsigned row = 1; row < kPixelRows; ++row)
    for (int k = 0; k < kWidth; ++k) sum.v[k] += sums[row][lane * kWidth + k];
  for (float& value : sum.v) value /= static_cast<float>(pixels);
  store_pack(y + static_cast<long long>(sample) * channels + channel, sum);
}

// Row-major, over whole images: one warp per plane.
template <typename T>
__global__ void __launch_bounds__(kPoolThreads)
    global_avg_pool_plain_kernel(const T* x, T* y, unsigned planes, unsigned pixels) {
  const unsigned plane = blockIdx.x * (kPoolThreads / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  float sum = 0;
  if (plane < planes)
    for (unsigned pixel = lane; pixel < pixels; pixel += 32)
      sum += to_float(x[static_cast<long long>(plane) * pixels + pixel]);
  sum = warp_sum(sum);
  if (plane < planes && lane == 0) y[plane] = from_float<T>(sum / static_cast<float>(pixels));
}

class AvgPoolForwardOp final : public PoolOp {
 public:
  explicit AvgPoolForwardOp(const AvgPool2dForward& desc)
      : PoolOp(Direction::forward, desc.x, desc.y, desc.window), adaptive_(desc.adaptive) {}

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<AvgPool2dForward>(pointers);
    if (count_ == 0) return;
    const bool packs = in_packs(args.x, args.y);
    if (adaptive_ && is_global(tensors_[1]))
      return in_type(tensors_[0].type, [&]<typename T>() { run_global<T>(stream, args, packs); });
    in_form_of(packs, [&]<typename T, int kWidth, bool kChannelsLast>() {
      launch(over_cells("avg_pool_forward", count_, kWidth, stream),
             adaptive_ ? avg_pool_forward_kernel<T, kWidth, kChannelsLast, true>
                       : avg_pool_forward_kernel<T, kWidth, kChannelsLast, false>,
             args.x, args.y, pool_, count_ / kWidth);
    });
  }

 private:
  template <typename T>
  void run_global(cudaStream_t stream, const Pointers<AvgPool2dForward>& args, bool packs) {
    const unsigned channels = pool_.large.channels, pixels = pool_.large.rows * pool_.large.cols;
    if (!channels_last_) {
      const Launch where{"global_avg_pool", dim3(blocks_for(count_, kPoolThreads / 32)), dim3(kPoolThreads), stream};
      return launch(where, global_avg_pool_plain_kernel<T>, args.x, args.y, count_, pixels);
    }
    const unsigned tiles = blocks_for(channels, kLanes * (packs ? 4 : 1));
    const Launch where{"global_avg_pool", dim3(count_ / channels * tiles), dim3(kPoolThreads), stream};
    launch(where, packs ? global_avg_pool_channels_last_kernel<4, T> : global_avg_pool_channels_last_kernel<1, T>,
           args.x, args.y, channels, pixels, tiles);
  }

  bool adaptive_;
};

class AvgPoolBackwardOp final : public PoolOp {
 public:
  explicit AvgPoolBackwardOp(const AvgPool2dBackward& desc)
      : PoolOp(Direction::backward, desc.dx, desc.dy, desc.window), adaptive_(desc.adaptive) {}

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<AvgPool2dBackward>(pointers);
    if (count_ == 0) return;
    in_form_of(in_packs(args.dy, args.dx), [&]<typename T, int kWidth, bool kChannelsLast>() {
      launch(over_cells("avg_pool_backward", count_, kWidth, stream),
             adaptive_ ? avg_pool_backward_kernel<T, kWidth, kChannelsLast, true>
                       : avg_pool_backward_kernel<T, kWidth, kChannelsLast, false>,
             args.dy, args.dx, pool_, count_ / kWidth);
    });
  }

 private:
  bool adaptive_;
};

}  // namespace

std::unique_ptr<CudaOp> make(const AvgPool2dForward& desc, const CudaOpOptions&) {
  return std::make_unique<AvgPoolForwardOp>(desc);
}
std::unique_ptr<CudaOp> make(const AvgPool2dBackward& desc, const CudaOpOptions&) {
  return std::make_unique<AvgPoolBackwardOp>(desc);
}

}  // namespace dp::kernels::cuda
