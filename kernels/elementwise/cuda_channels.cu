// Products that broadcast, the factors of dropped channels, and copies of channels, on GPUs.
#include <algorithm>

#include "kernels/device/cuda/block.h"
#include "kernels/device/cuda/cuda_op.h"
#include "kernels/device/cuda/philox.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/elementwise/cuda.h"
#include "kernels/op_args.h"

namespace dp::kernels::cuda {
namespace {

constexpr unsigned kThreads = 256, kWarps = kThreads / 32;

// MultiplyForward and MultiplyBackward.
//
// The kernels treat a sample as a matrix with contiguous rows. A row is a channel in a row-major tensor and a pixel in
// a channels-last one. Depending on the layout, each row has a factor, or each column.

template <int kWidth, typename T>
__global__ void __launch_bounds__(kElementThreads) multiply_kernel(const T* x, const T* s, T* y, long long count) {
  map_elements<kWidth>(x, s, y, count, [](float value, float factor) { return value * factor; });
}

// dx and ds may be null; dx may be dy.
template <int kWidth, typename T>
__global__ void __launch_bounds__(kElementThreads)
    multiply_backward_kernel(const T* dy, const T* x, const T* s, T* dx, T* ds, long long count) {
  const auto pass = [&]<int kPack>(long long at) {
    const Pack<kPack> gradients = load_pack<kPack>(dy + at);
    Pack<kPack> values = load_pack<kPack>(x + at), factors = load_pack<kPack>(s + at);
    for (int k = 0; k < kPack; ++k) {
      values.v[k] *= gradients.v[k];
      factors.v[k] *= gradients.v[k];
    }
    if (ds) store_pack(ds + at, values);
    if (dx) store_pack(dx + at, factors);
  };
  const long long first = first_element<kWidth>();
  if (first + kWidth <= count) return pass.template operator()<kWidth>(first);
  for (long long at = first; at < count; ++at) pass.template operator()<1>(at);
}

// `row_packs`: packs of a row. `rows`: of a sample.
template <int kWidth, typename T>
__global__ void __launch_bounds__(kThreads) multiply_rows_kernel(const T* x, const T* s, T* y, unsigned packs,
                                                                 unsigned rows, unsigned row_packs, bool by_column) {
  const unsigned index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= packs) return;
  const unsigned row = index / row_packs, column = index % row_packs;
  const long long at = static_cast<long long>(index) * kWidth;
  Pack<kWidth> values = load_pack<kWidth>(x + at);
  if (by_column) {
    const long long factor = (static_cast<long long>(row / rows) * row_packs + column) * kWidth;
    const Pack<kWidth> factors = load_pack<kWidth>(s + factor);
    for (int k = 0; k < kWidth; ++k) values.v[k] *= factors.v[k];
  } else {
    const float factor = to_float(s[row]);
    for (int k = 0; k < kWidth; ++k) values.v[k] *= factor;
  }
  store_pack(y + at, values);
}

// One factor for each row: a warp takes a row.
template <int kWidth, typename T>
__global__ void __launch_bounds__(kThreads)
    row_factors_kernel(const T* dy, const T* x, const T* s, T* dx, T* ds, unsigned rows, unsigned row_packs) {
  const unsigned row = blockIdx.x * kWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  const float factor = to_float(s[row]);
  const long long first = static_cast<long long>(row) * row_packs * kWidth;
  float sum = 0;
  for (unsigned column = lane; column < row_packs; column += 32) {
    const long long at = first + static_cast<long long>(column) * kWidth;
    Pack<kWidth> gradients = load_pack<kWidth>(dy + at);
    const Pack<kWidth> values = load_pack<kWidth>(x + at);
    for (int k = 0; k < kWidth; ++k) {
      sum = fmaf(gradients.v[k], values.v[k], sum);
      gradients.v[k] *= factor;
    }
    if (dx) store_pack(dx + at, gradients);
  }
  sum = warp_sum(sum);
  if (ds && lane == 0) ds[row] = from_float<T>(sum);
}

// One factor for each column. A block takes 32 packs of columns and some of the rows of a sample.
struct ColumnCut {
  unsigned rows, row_packs;  // of a sample
  unsigned tiles, parts;     // number of blocks along the columns, and along the rows
  unsigned part_rows;        // rows of a block
};

// `sums`: (samples, parts, columns).
template <int kWidth, typename T>
__global__ void __launch_bounds__(kThreads)
    column_factors_kernel(const T* dy, const T* x, const T* s, T* dx, float* sums, ColumnCut cut) {
  DP_SHARED(float, of_warps, [kWarps][32 * kWidth]);
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const unsigned column = blockIdx.x % cut.tiles * 32 + lane, block = blockIdx.x / cut.tiles;
  const unsigned part = block % cut.parts, sample = block / cut.parts;
  const unsigned begin = part * cut.part_rows, end = min(begin + cut.part_rows, cut.rows);
  const bool has_column = column < cut.row_packs;
  Pack<kWidth> factors{}, sum{};
  if (has_column) factors = load_pack<kWidth>(s + (static_cast<long long>(sample) * cut.row_packs + column) * kWidth);
  for (unsigned row = begin + warp; has_column && row < end; row += kWarps) {
    const long long at = ((static_cast<long long>(sample) * cut.rows + row) * cut.row_packs + column) * kWidth;
    Pack<kWidth> gradients = load_pack<kWidth>(dy + at);
    const Pack<kWidth> values = load_pack<kWidth>(x + at);
    for (int k = 0; k < kWidth; ++k) {
      sum.v[k] = fmaf(gradients.v[k], values.v[k], sum.v[k]);
      gradients.v[k] *= factors.v[k];
    }
    if (dx) store_pack(dx + at, gradients);
  }
  for (int k = 0; k < kWidth; ++k) of_warps[warp][lane * kWidth + k] = sum.v[k];
  __syncthreads();
  if (warp > 0 || !has_column) return;
  for (unsigned other = 1; other < kWarps; ++other)
    for (int k = 0; k < kWidth; ++k) sum.v[k] += of_warps[other][lane * kWidth + k];
  float* const to = sums + (static_cast<long long>(block) * cut.row_packs + column) * kWidth;
  for (int k = 0; k < kWidth; ++k) to[k] = sum.v[k];
}

// Adds the parts in order. `count`: all factors.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    join_factors_kernel(const float* sums, T* ds, unsigned count, unsigned columns, unsigned parts) {
  const unsigned index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= count) return;
  const float* const from = sums + static_cast<long long>(index / columns) * parts * columns + index % columns;
  float sum = 0;
  for (unsigned part = 0; part < parts; ++part) sum += from[static_cast<long long>(part) * columns];
  ds[index] = from_float<T>(sum);
}

class MultiplyOp : public CudaOp {
 protected:
  MultiplyOp(const TensorDesc& x, const TensorDesc& s)
      : broadcast_(broadcast_of(x.shape, s.shape)), x_(resolved_channels_last(x)), count_(index_count(x_)) {
    s_ = {s.shape, s.type, broadcast_ == Broadcast::none ? x_.layout : plain(s.shape, s.type)};
    if (broadcast_ == Broadcast::none || count_ == 0) return;
    const Order order = order_of(x_);
    samples_ = static_cast<unsigned>(x_.shape[0]);
    rows_ = static_cast<unsigned>(order.channels_last ? order.pixels : order.channels);
    columns_ = count_ / samples_ / rows_;
    by_column_ = (broadcast_ == Broadcast::pixels) == order.channels_last;
  }

  // Whether a thread takes four contiguous elements of a row at once.
  bool packs(bool aligned) const { return aligned && columns_ % 4 == 0; }

  Broadcast broadcast_;
  TensorDesc x_, s_;
  unsigned count_;
  unsigned samples_ = 0, rows_ = 0, columns_ = 0;  // rows and columns of a sample
  bool by_column_ = false;
};

class MultiplyForwardOp final : public MultiplyOp {
 public:
  explicit MultiplyForwardOp(const MultiplyForward& desc) : MultiplyOp(desc.x, desc.s) { tensors_ = {x_, s_, x_}; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<MultiplyForward>(pointers);
    const bool aligned = take_packs(args.x, args.s, args.y);
    if (count_ == 0) return;
    in_type(x_.type, [&]<typename T>() {
      if (broadcast_ == Broadcast::none)
        return launch(over_elements("multiply", count_, aligned, stream),
                      aligned ? multiply_kernel<4, T> : multiply_kernel<1, T>, args.x, args.s, args.y,
                      static_cast<long long>(count_));
      const unsigned width = packs(aligned) ? 4 : 1;
      launch({"multiply_rows", dim3(blocks_for(count_ / width, kThreads)), dim3(kThreads), stream},
             width == 4 ? multiply_rows_kernel<4, T> : multiply_rows_kernel<1, T>, args.x, args.s, args.y,
             count_ / width, rows_, columns_ / width, by_column_);
    });
  }
};

class MultiplyBackwardOp final : public MultiplyOp {
 public:
  explicit MultiplyBackwardOp(const MultiplyBackward& desc) : MultiplyOp(desc.x, desc.s) {
    tensors_ = {x_, x_, s_, x_, s_};
  }
  std::size_t workspace_bytes() const override {
    if (!by_column_) return 0;
    return std::size_t{samples_} * columns_ * std::max(cut(1).parts, cut(4).parts) * sizeof(float);
  }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<MultiplyBackward>(pointers);
    const bool aligned = take_packs(args.dy, args.x, args.s, args.dx, args.ds);
    if (count_ == 0) return;
    in_type(x_.type, [&]<typename T>() {
      if (broadcast_ == Broadcast::none)
        return launch(over_elements("multiply_backward", count_, aligned, stream),
                      aligned ? multiply_backward_kernel<4, T> : multiply_backward_kernel<1, T>, args.dy, args.x,
                      args.s, args.dx, args.ds, static_cast<long long>(count_));
      const unsigned width = packs(aligned) ? 4 : 1;
      if (by_column_) return columns<T>(stream, args, width, static_cast<float*>(workspace));
      launch({"row_factors", dim3(blocks_for(samples_ * rows_, kWarps)), dim3(kThreads), stream},
             width == 4 ? row_factors_kernel<4, T> : row_factors_kernel<1, T>, args.dy, args.x, args.s, args.dx,
             args.ds, samples_ * rows_, columns_ / width);
    });
  }

 private:
  // Enough blocks for two waves on an H100, but at least 64 rows a part. It depends on the shape alone.
  ColumnCut cut(unsigned width) const {
    constexpr unsigned kBlocks = 264, kRows = 64;
    ColumnCut cut{rows_, columns_ / width, blocks_for(columns_ / width, 32), 1, 1};
    const unsigned wanted = std::max(1u, kBlocks / std::max(1u, cut.tiles * samples_));
    cut.part_rows = std::max(kRows, blocks_for(rows_, wanted));
    cut.parts = blocks_for(rows_, cut.part_rows);
    return cut;
  }
  template <typename T>
  void columns(cudaStream_t stream, const Pointers<MultiplyBackward>& args, unsigned width, float* sums) const {
    const ColumnCut own = cut(width);
    launch({"column_factors", dim3(own.tiles * own.parts * samples_), dim3(kThreads), stream},
           width == 4 ? column_factors_kernel<4, T> : column_factors_kernel<1, T>, args.dy, args.x, args.s, args.dx,
           sums, own);
    const unsigned factors = samples_ * columns_;
    if (args.ds != nullptr)
      launch({"join_factors", dim3(blocks_for(factors, kThreads)), dim3(kThreads), stream}, join_factors_kernel<T>,
             sums, args.ds, factors, columns_, own.parts);
  }
};

// DropFactors. A thread for each factor.

template <typename T>
__global__ void __launch_bounds__(kThreads)
    drop_factors_kernel(const std::int64_t* samples, const StepInputs* inputs, T* y, unsigned count, unsigned channels,
                        bool whole_samples, Dropping dropping) {
  const unsigned index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= count) return;
  const bool kept = dropout_keeps(*inputs, dropping, samples[index / channels], whole_samples ? 0 : index % channels);
  y[index] = from_float<T>(kept ? dropping.scale : 0.f);
}

class DropFactorsOp final : public CudaOp {
 public:
  explicit DropFactorsOp(const DropFactors& desc)
      : dropping_(dropping(desc.dropout)), whole_samples_(desc.whole_samples) {
    tensors_ = {{desc.y.shape, desc.y.type, plain(desc.y.shape, desc.y.type)}};
  }
  std::string implementation() const override { return "own:philox"; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<DropFactors>(pointers);
    const unsigned count = index_count(tensors_[0]);
    if (count == 0) return;
    in_type(tensors_[0].type, [&]<typename T>() {
      launch({"drop_factors", dim3(blocks_for(count, kThreads)), dim3(kThreads), stream}, drop_factors_kernel<T>,
             args.samples, args.inputs, args.y, count, static_cast<unsigned>(tensors_[0].shape[1]), whole_samples_,
             dropping_);
    });
  }

 private:
  Dropping dropping_;
  bool whole_samples_;
};

// CopyChannels.
//
// The kernel treats the copied channels of a sample of y as a matrix. A row-major tensor has one row, with all pixels
// of these channels. A channels-last tensor has a row for each pixel. If x has the other order, or if there are
// channels between those that are copied, the elements of a row are not contiguous: `x_column` and `y_column` are their
// distances.

struct ChannelCopy {
  long long rows, row_packs;            // of a sample
  long long x_sample, x_row, x_column;  // distances in elements
  long long y_sample, y_row, y_column;
};

template <int kWidth, typename T>
__global__ void __launch_bounds__(kThreads) copy_channels_kernel(const T* x, T* y, unsigned packs, ChannelCopy copy) {
  const unsigned index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= packs) return;
  const unsigned row_packs = static_cast<unsigned>(copy.row_packs), rows = static_cast<unsigned>(copy.rows);
  const long long column = index % row_packs * kWidth, row = index / row_packs % rows,
                  sample = index / row_packs / rows;
  store_pack(y + sample * copy.y_sample + row * copy.y_row + column * copy.y_column,
             load_pack<kWidth>(x + sample * copy.x_sample + row * copy.x_row + column * copy.x_column));
}

class CopyChannelsOp final : public CudaOp {
 public:
  explicit CopyChannelsOp(const CopyChannels& desc) {
    const TensorDesc x = resolved_channels_last(desc.x);
    tensors_ = {x, in_order_of(x, desc.y)};
    index_count(x), index_count(tensors_[1]);
    const Matrix from(tensors_[0]), to(tensors_[1]);
    count_ = static_cast<unsigned>(x.shape[0] * desc.count * from.pixels);
    x_first_ = desc.from * from.channel, y_first_ = desc.to * to.channel;
    copy_ = {.x_sample = from.sample, .y_sample = to.sample, .y_column = 1};
    const long long from_channel = desc.from_step * from.channel, to_channel = desc.to_step * to.channel;
    if (to.channel == 1 && to.pixels > 1)  // channels last
      copy_.rows = to.pixels, copy_.row_packs = desc.count, copy_.x_row = from.pixel, copy_.x_column = from_channel,
      copy_.y_row = to.pixel, copy_.y_column = to_channel;
    else if (from_channel == from.pixels && to_channel == to.pixels)
      copy_.rows = 1, copy_.row_packs = desc.count * to.pixels, copy_.x_column = 1;
    else
      copy_.rows = desc.count, copy_.row_packs = to.pixels, copy_.x_row = from_channel, copy_.x_column = from.pixel,
      copy_.y_row = to_channel;
    packs_ = copy_.x_column == 1 && copy_.y_column == 1;
    for (const long long distance :
         {copy_.row_packs, copy_.x_sample, copy_.x_row, copy_.y_sample, copy_.y_row, x_first_, y_first_})
      packs_ = packs_ && distance % 4 == 0;
  }
  std::string implementation() const override { return "own:copy"; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<CopyChannels>(pointers);
    if (count_ == 0) return;
    const bool packs = packs_ && take_packs(args.x, args.y);
    const unsigned width = packs ? 4 : 1;
    ChannelCopy copy = copy_;
    copy.row_packs /= width;
    in_type(tensors_[0].type, [&]<typename T>() {
      launch({"copy_channels", dim3(blocks_for(count_ / width, kThreads)), dim3(kThreads), stream},
             packs ? copy_channels_kernel<4, T> : copy_channels_kernel<1, T>, static_cast<T*>(args.x) + x_first_,
             static_cast<T*>(args.y) + y_first_, count_ / width, copy);
    });
  }

 private:
  // Distances in elements between samples, channels and pixels. The features of (N,features) are its channels.
  struct Matrix {
    explicit Matrix(const TensorDesc& tensor)
        : pixels(tensor.shape.rank() == 4 ? tensor.shape[2] * tensor.shape[3] : 1),
          sample(tensor.shape[1] * pixels),
          channel(order_of(tensor).channels_last ? 1 : pixels),
          pixel(order_of(tensor).channels_last ? tensor.shape[1] : 1) {}
    long long pixels, sample, channel, pixel;
  };

  ChannelCopy copy_{};
  long long x_first_ = 0, y_first_ = 0;
  unsigned count_ = 0;
  bool packs_ = false;
};

}  // namespace

std::unique_ptr<CudaOp> make(const MultiplyForward& desc, const CudaOpOptions&) {
  return std::make_unique<MultiplyForwardOp>(desc);
}
std::unique_ptr<CudaOp> make(const MultiplyBackward& desc, const CudaOpOptions&) {
  return std::make_unique<MultiplyBackwardOp>(desc);
}
std::unique_ptr<CudaOp> make(const DropFactors& desc, const CudaOpOptions&) {
  return std::make_unique<DropFactorsOp>(desc);
}
std::unique_ptr<CudaOp> make(const CopyChannels& desc, const CudaOpOptions&) {
  return std::make_unique<CopyChannelsOp>(desc);
}

}  // namespace dp::kernels::cuda
