// ReLU, addition, filling, dropout and changes of layout on GPUs.
#include "kernels/elementwise/cuda.h"

#include "kernels/device/cuda/cuda_op.h"
#include "kernels/device/cuda/pack.h"
#include "kernels/device/cuda/philox.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/op_args.h"

namespace dp::kernels::cuda {
namespace {

// ReluForward, ReluBackward, AddForward, Fill, Accumulate: one pass over contiguous memory, in any element order.

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

// DropoutApply. One draw gives the random words of four elements in C,H,W order. Row-major, a thread takes these four.
// Channels last, they are far apart in memory: a thread takes neighbours in memory and makes one draw per element.

namespace {

constexpr int kThreads = 256;

// `per_sample`: elements of a sample. `quads`: draws per sample.
template <int kWidth, typename T>
__global__ void __launch_bounds__(kThreads)
    dropout_plain_kernel(const T* x, T* y, const std::int64_t* samples, const StepInputs* inputs, unsigned batch,
                         unsigned per_sample, unsigned quads, Dropping dropping) {
  const unsigned index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= batch * quads) return;
  const unsigned sample = index / quads, quad = index % quads;
  const uint4 words = dropout_words_of(*inputs, dropping.layer, samples[sample], quad);
  const long long at = static_cast<long long>(sample) * per_sample + 4ll * quad;
  const auto apply = [&](float value, unsigned k) {
    return word_of(words, k) >= dropping.threshold ? value * dropping.scale : 0.f;
  };
  if constexpr (kWidth == 4) {
    Pack<4> values = load_pack<4>(x + at);
    for (unsigned k = 0; k < 4; ++k) values.v[k] = apply(values.v[k], k);
    store_pack(y + at, values);
  } else {
    for (unsigned k = 0; k < 4; ++k)
      if (4 * quad + k < per_sample) y[at + k] = from_float<T>(apply(to_float(x[at + k]), k));
  }
}

template <int kWidth, typename T>
__global__ void __launch_bounds__(kThreads)
    dropout_channels_last_kernel(const T* x, T* y, const std::int64_t* samples, const StepInputs* inputs,
                                 unsigned packs, unsigned channels, unsigned pixels, Dropping dropping) {
  const unsigned index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= packs) return;
  const unsigned channel = index % (channels / kWidth) * kWidth, row = index / (channels / kWidth);
  const std::int64_t sample = samples[row / pixels];
  const long long at = static_cast<long long>(index) * kWidth;
  Pack<kWidth> values = load_pack<kWidth>(x + at);
  for (int k = 0; k < kWidth; ++k) {
    const bool kept = dropout_keeps(*inputs, dropping, sample, (channel + k) * pixels + row % pixels);
    values.v[k] = kept ? values.v[k] * dropping.scale : 0.f;
  }
  store_pack(y + at, values);
}

class DropoutOp final : public CudaOp {
 public:
  explicit DropoutOp(const DropoutApply& desc) : dropping_(dropping(desc.dropout)) {
    tensors_ = {resolved_channels_last(desc.x)};
    order_ = order_of(tensors_[0]);
    count_ = index_count(tensors_[0]);
  }
  std::string implementation() const override { return "own:philox"; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<DropoutApply>(pointers);
    if (count_ == 0) return;
    const bool aligned = take_packs(args.x, args.y);
    in_type(tensors_[0].type, [&]<typename T>() {
      if (order_.channels_last)
        channels_last<T>(stream, args, aligned);
      else
        plain<T>(stream, args, aligned);
    });
  }

 private:
  template <typename T>
  void channels_last(cudaStream_t stream, const Pointers<DropoutApply>& args, bool aligned) const {
    const bool packs = aligned && order_.channels % 4 == 0;
    const unsigned count = packs ? count_ / 4 : count_;
    launch({"dropout", dim3(blocks_for(count, kThreads)), dim3(kThreads), stream},
           packs ? dropout_channels_last_kernel<4, T> : dropout_channels_last_kernel<1, T>, args.x, args.y,
           args.samples, args.inputs, count, order_.channels, order_.pixels, dropping_);
  }
  template <typename T>
  void plain(cudaStream_t stream, const Pointers<DropoutApply>& args, bool aligned) const {
    const auto batch = static_cast<unsigned>(tensors_[0].shape[0]);
    const unsigned per_sample = count_ / batch, quads = blocks_for(per_sample, 4);
    const bool packs = aligned && per_sample % 4 == 0;
    launch({"dropout", dim3(blocks_for(batch * quads, kThreads)), dim3(kThreads), stream},
           packs ? dropout_plain_kernel<4, T> : dropout_plain_kernel<1, T>, args.x, args.y, args.samples, args.inputs,
           batch, per_sample, quads, dropping_);
  }

  Dropping dropping_;
  Order order_;
  unsigned count_;
};

}  // namespace

std::unique_ptr<CudaOp> make(const DropoutApply& desc, const CudaOpOptions&) {
  return std::make_unique<DropoutOp>(desc);
}

// Reorder: a plain copy if the element order stays, otherwise a transpose between
// channels x pixels and pixels x channels.

namespace {

constexpr unsigned kTile = 32, kTileRows = kThreads / kTile;
constexpr unsigned kFew = 8;  // up to this many channels, a thread copies all channels of a pixel

template <typename T>
inline constexpr bool kLow = std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>;

template <typename To, typename From>
__device__ __forceinline__ To converted(From value) {
  if constexpr (std::is_same_v<To, From>)
    return value;
  else if constexpr (kLow<To>)
    return from_float<To>(value);
  else if constexpr (kLow<From>)
    return to_float(value);
  else
    return static_cast<To>(value);
}

template <typename From, typename To>
__global__ void __launch_bounds__(kThreads) convert_kernel(const From* src, To* dst, long long count) {
  const long long i = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) dst[i] = converted<To>(src[i]);
}

// convert_kernel for float32 to or from 16 bits, four elements per thread. Both addresses are aligned to 16 bytes.
template <typename From, typename To>
__global__ void __launch_bounds__(kThreads) convert_packs_kernel(const From* src, To* dst, long long count) {
  long long i = (static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x) * 4;
  if (i + 4 <= count) return store_pack(dst + i, load_pack<4>(src + i));
  for (; i < count; ++i) dst[i] = converted<To>(src[i]);
}

// Transposes a batch of rows x cols matrices, tile by tile.
template <typename From, typename To>
__global__ void __launch_bounds__(kThreads)
    transpose_kernel(const From* src, To* dst, unsigned rows, unsigned cols, unsigned row_tiles, unsigned col_tiles) {
  DP_SHARED(To, tile, [kTile][kTile + 1]);
  const unsigned x = threadIdx.x % kTile, y = threadIdx.x / kTile, at = blockIdx.x / col_tiles;
  const unsigned col_tile = blockIdx.x % col_tiles * kTile, row_tile = at % row_tiles * kTile;
  const long long matrix = static_cast<long long>(at / row_tiles) * rows * cols;
  for (unsigned k = y; k < kTile; k += kTileRows)
    if (row_tile + k < rows && col_tile + x < cols)
      tile[k][x] = converted<To>(src[matrix + static_cast<long long>(row_tile + k) * cols + col_tile + x]);
  __syncthreads();
  for (unsigned k = y; k < kTile; k += kTileRows)
    if (col_tile + k < cols && row_tile + x < rows)
      dst[matrix + static_cast<long long>(col_tile + k) * rows + row_tile + x] = tile[x][k];
}

// Transposes with at most kFew channels, one pixel per thread. The last four arguments
// are distances between neighbours, in elements.
template <typename From, typename To>
__global__ void __launch_bounds__(kThreads)
    few_channels_kernel(const From* src, To* dst, unsigned count, unsigned channels, unsigned pixels,
                        unsigned src_channel, unsigned src_pixel, unsigned dst_channel, unsigned dst_pixel) {
  const unsigned i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= count) return;
  const long long matrix = static_cast<long long>(i / pixels) * channels * pixels, pixel = i % pixels;
  for (unsigned c = 0; c < channels; ++c)
    dst[matrix + static_cast<long long>(c) * dst_channel + pixel * dst_pixel] =
        converted<To>(src[matrix + static_cast<long long>(c) * src_channel + pixel * src_pixel]);
}

class ReorderOp final : public CudaOp {
 public:
  explicit ReorderOp(const Reorder& desc) {
    tensors_ = {resolved_plain(desc.src), resolved_plain(desc.dst)};
    const Order src = order_of(tensors_[0]), dst = order_of(tensors_[1]);
    order_ = src.channels_last ? src : dst;
    from_channels_last_ = src.channels_last;
    same_ = src.channels_last == dst.channels_last;
    if (same_ && src.channels_last && (src.channels != dst.channels || src.pixels != dst.pixels))
      throw Error(ErrorCode::usage, "reorder: cannot convert " + tensors_[0].layout.name + " to " +
                                        tensors_[1].layout.name + "; convert to the plain layout first");
  }
  std::string implementation() const override { return same_ ? "own:copy" : "own:transpose"; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<Reorder>(pointers);
    if (tensors_[0].shape.numel() == 0) return;
    const DType from = tensors_[0].type, to = tensors_[1].type;
    if (same_ && from == to)
      return KernelLoading::active() ? void()
                                     : check(cudaMemcpyAsync(args.dst, args.src, tensors_[0].layout.bytes,
                                                             cudaMemcpyDeviceToDevice, stream),
                                             "copying a tensor");
    if (from == DType::f64)
      to == DType::f64 ? run<double, double>(stream, args) : run<double, float>(stream, args);
    else if (to == DType::f64)
      run<float, double>(stream, args);
    else if (from == to)
      in_type(from, [&]<typename T>() { run<T, T>(stream, args); });
    else if (from == DType::f32)
      to == DType::bf16 ? run<float, BFloat16>(stream, args) : run<float, Float16>(stream, args);
    else
      from == DType::bf16 ? run<BFloat16, float>(stream, args) : run<Float16, float>(stream, args);
  }

 private:
  template <typename From, typename To>
  void run(cudaStream_t stream, const Pointers<Reorder>& args) const {
    const auto channels = static_cast<unsigned>(order_.channels), pixels = static_cast<unsigned>(order_.pixels);
    if (same_) {
      const long long count = tensors_[0].shape.numel();
      if constexpr (kLow<From> != kLow<To> && !std::is_same_v<From, double> && !std::is_same_v<To, double>)
        if (take_packs(args.src, args.dst))
          return launch({"reorder_copy", dim3(blocks_for(count, 4 * kThreads)), dim3(kThreads), stream},
                        convert_packs_kernel<From, To>, args.src, args.dst, count);
      launch({"reorder_copy", dim3(blocks_for(count, kThreads)), dim3(kThreads), stream}, convert_kernel<From, To>,
             args.src, args.dst, count);
    } else if (channels <= kFew) {
      const unsigned count = index_count(tensors_[0]) / channels;
      const Launch where{"reorder_few_channels", dim3(blocks_for(count, kThreads)), dim3(kThreads), stream};
      if (from_channels_last_)
        launch(where, few_channels_kernel<From, To>, args.src, args.dst, count, channels, pixels, 1, channels, pixels,
               1);
      else
        launch(where, few_channels_kernel<From, To>, args.src, args.dst, count, channels, pixels, pixels, 1, 1,
               channels);
    } else {
      const unsigned rows = from_channels_last_ ? pixels : channels, cols = from_channels_last_ ? channels : pixels;
      const unsigned row_tiles = blocks_for(rows, kTile), col_tiles = blocks_for(cols, kTile);
      const auto blocks = static_cast<unsigned>(order_.outer * row_tiles * col_tiles);
      launch({"reorder_transpose", dim3(blocks), dim3(kThreads), stream}, transpose_kernel<From, To>, args.src,
             args.dst, rows, cols, row_tiles, col_tiles);
    }
  }

  Order order_;  // of the channels-last side, if there is one
  bool same_, from_channels_last_;
};

}  // namespace

std::unique_ptr<CudaOp> make(const Reorder& desc, const CudaOpOptions&) { return std::make_unique<ReorderOp>(desc); }

}  // namespace dp::kernels::cuda
