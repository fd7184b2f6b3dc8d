// Reorder: a plain copy if the element order stays, otherwise a transpose between
// channels x pixels and pixels x channels.
#include "kernels/cuda/cuda_op.h"
#include "kernels/cuda/ops/orders.h"
#include "kernels/cuda/ops/pack.h"
#include "kernels/cuda/runtime/check.h"
#include "kernels/op_args.h"

namespace dp::kernels::cuda {
namespace {

constexpr int kThreads = 256;
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
