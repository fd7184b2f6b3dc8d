// Forward pass on tensor cores for images with few channels.
#include "kernels/conv/cuda_mma_thin.h"

#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>

#include "kernels/conv/cuda_gemm_conv.h"
#include "kernels/conv/cuda_mma.h"
#include "kernels/conv/cuda_mma_norm.h"
#include "kernels/conv/cuda_mma_windows.h"
#include "kernels/conv/cuda_thin.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/linear/cuda_gemm.h"
#include "kernels/op_args.h"

namespace dp::kernels::cuda {
namespace {

// Windows of an image with few channels, in shared memory. A patch is the window of one cell of y, an element of it is
// numbered (kernel row, kernel col, channel). Lines are spaced: each image has its lines of padding, each line its
// columns of padding, all zeros. So an element is at the sum of two offsets: of its cell, and of its number.
struct ThinPatches {
  Geometry geometry;
  Count lines;  // spaced, of one image
  Count pitch;  // elements of a spaced line

  ThinPatches() = default;
  explicit ThinPatches(const Geometry& g)
      : geometry(g),
        lines((g.out_height - 1) * g.stride + g.kernel_height),
        pitch(((g.out_width - 1) * g.stride + g.kernel_width) * g.channels) {}

  int depth() const { return geometry.kernel_height * geometry.kernel_width * geometry.channels; }
  int cells() const { return geometry.batch * geometry.out_height * geometry.out_width; }

  // Elements of shared memory, at most, for the patches of `count` successive cells.
  std::int64_t most_elements(int count) const {
    const std::int64_t between = geometry.kernel_height - geometry.stride;  // more lines from one image to the next
    const std::int64_t of_y = (count + geometry.out_width.value - 2) / geometry.out_width.value + 1;
    const std::int64_t next = of_y < 2 ? 0 : (of_y - 2) / geometry.out_height.value + 1;
    return ((of_y - 1) * geometry.stride + geometry.kernel_height + next * (between > 0 ? between : 0)) * pitch.value;
  }

  // The first spaced line of the patch of cell m.
  __device__ int first_line(int m) const {
    const int line = m / geometry.out_width, image = line / geometry.out_height;
    return image * lines + (line - image * geometry.out_height) * geometry.stride;
  }
  // Offset of cell m's patch in shared memory that begins with spaced line `first`.
  __device__ int of_cell(int m, int first) const {
    return (first_line(m) - first) * pitch + m % geometry.out_width * geometry.stride * geometry.channels;
  }
  __device__ int of_element(int k) const {
    const int tap = k / geometry.channels, row = tap / geometry.kernel_width;
    return row * pitch + (tap - row * geometry.kernel_width) * geometry.channels + k % geometry.channels;
  }

  // Copies the spaced lines of the patches of cells [begin, end) to shared memory. A barrier must follow.
  template <int threads>
  __device__ __forceinline__ void copy(std::uint16_t* shared, const std::uint16_t* x, int begin, int end) const {
    const int first = first_line(begin);
    const int all = (first_line(end - 1) - first + geometry.kernel_height) * pitch;
#pragma unroll 8
    for (int at = static_cast<int>(threadIdx.x); at < all; at += threads) {
      const int line = at / pitch, place = at - line * pitch, col = place / geometry.channels;
      const int image = (first + line) / lines, h = first + line - image * lines - geometry.padding;
      const int w = col - geometry.padding;
      const bool inside = static_cast<unsigned>(h) < static_cast<unsigned>(geometry.height.value) &&
                          static_cast<unsigned>(w) < static_cast<unsigned>(geometry.width.value);
      shared[at] = inside ? x[geometry.x.of_cell(image, h, w) + (place - col * geometry.channels) * geometry.x.channel]
                          : std::uint16_t{0};
    }
  }
};
// Passed to kernels byte by byte, so there must be no padding: its bytes would be indeterminate.
static_assert(std::has_unique_object_representations_v<ThinPatches>);

// A pair of 16-bit values as an operand of mma.
__device__ __forceinline__ unsigned pair_of(std::uint16_t low, std::uint16_t high) {
  return low | static_cast<unsigned>(high) << 16;
}

// Whether a block of the forward has enough shared memory.
bool thin_forward_fits(const Geometry& geometry, std::size_t shared_memory);

constexpr int kLeastCapability = 80;

// Shapes as in forward: y may be its gradient. The types of w and its gradient differ, so the caller checks them.
bool fits(const TensorDesc& x, const TensorDesc& y, const Geometry& geometry, const CudaOpOptions& options) {
  return options.compute_capability >= kLeastCapability && is_low(x.type) && y.type == x.type && x.shape[0] > 0 &&
         y.shape[1] % kChunk == 0 && is_channels_last(y) && is_thin(geometry);
}

template <typename Desc>
std::vector<Candidate> one(const char* name, const Desc& desc) {
  return {{family::thin, name, [desc] { return make_thin_mma(desc); }}};
}

template <typename Forward>  // Conv2dForward or NormConv2dForward
std::vector<Candidate> forward_candidates(Forward d, const char* name, const CudaOpOptions& options) {
  for (TensorDesc* const tensor : {&d.x, &d.w, &d.y}) *tensor = resolved_channels_last(*tensor);
  if (!is_plain(d.x, d.w, d.window)) return {};
  const Geometry g = geometry_of(d.x, d.w, d.y, d.window);
  if (d.w.type != d.x.type || !fits(d.x, d.y, g, options) || !thin_forward_fits(g, options.shared_memory)) return {};
  return one(name, d);
}

std::vector<Candidate> candidates_of(const Conv2dForward& d, const CudaOpOptions& options) {
  return forward_candidates(d, kThinName, options);
}
std::vector<Candidate> candidates_of(const NormConv2dForward& d, const CudaOpOptions& options) {
  if (d.norm) return {};
  return forward_candidates(d, kThinFusedName, options);
}

template <typename Desc>
std::vector<Candidate> candidates_of(const Desc&, const CudaOpOptions&) {
  return {};
}

}  // namespace

std::vector<Candidate> thin_mma_candidates(const OpDesc& desc, const CudaOpOptions& options) {
  return std::visit([&](const auto& d) { return candidates_of(d, options); }, desc);
}

namespace {
const CandidateSource thin_source(CandidateSource::Kind::own, {family::thin}, thin_mma_candidates);
}  // namespace

// Conv2dForward, and NormConv2dForward without normalisation of x, of an image with few channels on tensor cores.

namespace {

// 256 cells and 64 channels of y; a warp computes 16 cells at a time.
using ThinTile = MmaTileSize<256, 64, 32, 64, 16, 1, 3>;

struct ThinProduct {
  ThinPatches patches;
  int out_chunks;
  int steps;  // of 16 elements of a patch
  int bias, relu;

  // Chunks of shared memory. Weights have an odd number of chunks per channel of y, which avoids bank conflicts.
  __host__ __device__ int weight_pitch() const { return 2 * steps + 1; }
  __host__ __device__ int weight_chunks() const { return ThinTile::kCols * weight_pitch(); }
  std::size_t shared_bytes() const {
    return (kStagedChunks + static_cast<std::size_t>(weight_chunks())) * sizeof(uint4) +
           static_cast<std::size_t>(steps) * 16 * sizeof(int) +
           static_cast<std::size_t>(patches.most_elements(ThinTile::kRows)) * sizeof(std::uint16_t);
  }
  static constexpr std::size_t kStagedChunks = ThinTile::kRows * kStagedPitch<ThinTile> / 4;
};
static_assert(std::has_unique_object_representations_v<ThinProduct>);

// blockIdx: tile of cells of y, tile of channels of y. Null parts of `moments`: no moments.
template <typename Low>
__global__ void __launch_bounds__(ThinTile::kThreads, ThinTile::kBlocks)
    thin_mma_forward_kernel(const std::uint16_t* x, const std::uint16_t* w, const float* bias, uint4* y,
                            StoredMoments moments, ThinProduct product) {
  using Tile = ThinTile;
  constexpr int kPitch = kStagedPitch<Tile>, kRowChunks = Tile::kCols / kChunk;
  DP_DYNAMIC_SHARED(uint4, shared);
  auto* const staged = reinterpret_cast<unsigned*>(shared);
  uint4* const weights = shared + ThinProduct::kStagedChunks;
  auto* const offsets = reinterpret_cast<int*>(weights + product.weight_chunks());  // of a patch's elements
  auto* const lines = reinterpret_cast<std::uint16_t*>(offsets + product.steps * 16);
  const ThinPatches& patches = product.patches;
  const ForwardPoints points(patches.geometry, 0);
  const int depth = points.depth(), cells = points.rows();
  const int first_row = static_cast<int>(blockIdx.x) * Tile::kRows, end = min(first_row + Tile::kRows, cells);
  const int first_channel = static_cast<int>(blockIdx.y) * Tile::kCols;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;

  patches.copy<Tile::kThreads>(lines, x, first_row, end);
  {
    constexpr int kAside = Tile::kThreads / Tile::kCols;  // threads that copy the weights of one channel
    const int channel = thread / kAside, col = first_channel + channel;
    auto* const own = reinterpret_cast<std::uint16_t*>(weights + channel * product.weight_pitch());
#pragma unroll 8
    for (int k = thread % kAside; k < product.steps * 16; k += kAside)
      own[k] = k < depth && col < points.cols() ? w[points.b_row(col).offset + points.b_k(k).offset] : std::uint16_t{0};
  }
  for (int k = thread; k < product.steps * 16; k += Tile::kThreads) offsets[k] = k < depth ? patches.of_element(k) : -1;
  __syncthreads();

  const int first_line = patches.first_line(first_row);
  const Ending ending{1, product.bias != 0, product.relu != 0, false, false};
#pragma unroll 1
  for (int i = 0; i < Tile::kDown; ++i) {
    const int row = warp_row<Tile>() + i * 16 + lane / 4;  // and row + 8
    int bases[2];
    for (int half = 0; half < 2; ++half) {
      const int m = first_row + row + half * 8;
      bases[half] = m < end ? patches.of_cell(m, first_line) : -1;
    }
    const auto value = [&](int lower, int offset) {
      return bases[lower] >= 0 && offset >= 0 ? lines[bases[lower] + offset] : std::uint16_t{0};
    };
    float sums[Tile::kAcross][4] = {};
#pragma unroll 1
    for (int step = 0; step < product.steps; ++step) {
      unsigned a[4];
#pragma unroll
      for (int right = 0; right < 2; ++right) {
        const int2 at = *reinterpret_cast<const int2*>(offsets + step * 16 + right * 8 + lane % 4 * 2);
        for (int half = 0; half < 2; ++half) a[right * 2 + half] = pair_of(value(half, at.x), value(half, at.y));
      }
#pragma unroll
      for (int j = 0; j < Tile::kAcross; j += 2) {
        unsigned b[4];
        ptx::ldmatrix_x4(
            b, weights + (j * 8 + lane % 8 + lane / 16 * 8) * product.weight_pitch() + step * 2 + lane / 8 % 2);
        const unsigned low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
        mma<Low>(sums[j], a, low);
        mma<Low>(sums[j + 1], a, high);
      }
    }
#pragma unroll
    for (int j = 0; j < Tile::kAcross; ++j) {
      const int col = j * 8 + lane % 4 * 2, channel = first_channel + col;
      float biases[2] = {0, 0};
      if (ending.bias && channel < points.cols()) biases[0] = bias[channel], biases[1] = bias[channel + 1];
      for (int half = 0; half < 2; ++half)
        staged[(row + half * 8) * kPitch + col / 2] = rounded_pair<Low>(
            ended(sums[j][half * 2], biases, 0, ending), ended(sums[j][half * 2 + 1], biases, 1, ending));
    }
  }
  __syncthreads();
#pragma unroll 4
  for (int at = thread; at < Tile::kRows * kRowChunks; at += Tile::kThreads) {
    const int row = at / kRowChunks, chunk = first_channel / kChunk + at % kRowChunks;
    if (first_row + row < cells && chunk < product.out_chunks)
      y[static_cast<long long>(first_row + row) * product.out_chunks + chunk] =
          *reinterpret_cast<const uint4*>(staged + row * kPitch + at % kRowChunks * 4);
  }
  moments.take<Low, Tile>(staged, static_cast<int>(blockIdx.x), first_channel);
}

ThinProduct product_of(const Geometry& g, bool bias, bool relu) {
  const ThinPatches patches(g);
  return {patches, g.out_channels / kChunk, (patches.depth() + 15) / 16, bias, relu};
}

void enqueue_product(cudaStream_t stream, DType type, const ThinProduct& product, const void* x, const void* w,
                     const void* bias, void* y, const StoredMoments& moments) {
  const dim3 grid(blocks_for(product.patches.cells(), ThinTile::kRows),
                  blocks_for(product.out_chunks, ThinTile::kCols / kChunk));
  launch({"thin_mma_forward", grid, dim3(ThinTile::kThreads), stream, product.shared_bytes()},
         type == DType::bf16 ? thin_mma_forward_kernel<BFloat16> : thin_mma_forward_kernel<Float16>,
         static_cast<const std::uint16_t*>(x), static_cast<const std::uint16_t*>(w), static_cast<const float*>(bias),
         static_cast<uint4*>(y), moments, product);
}

class ThinMmaForwardOp final : public CudaOp {
 public:
  ThinMmaForwardOp(const Conv2dForward& d, const Geometry& g) : product_(product_of(g, d.bias, d.relu)) {
    tensors_ = {d.x, d.w, d.y};
  }
  std::string implementation() const override { return kThinName; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<Conv2dForward>(pointers);
    check_on_16_bytes({args.y});
    enqueue_product(stream, tensors_[0].type, product_, args.x, args.w, args.b, args.y, {});
  }

 private:
  ThinProduct product_;
};

class ThinMmaNormForwardOp final : public CudaOp {
 public:
  ThinMmaNormForwardOp(const NormConv2dForward& d, const Geometry& g)
      : product_(product_of(g, false, false)),
        moments_(d, static_cast<unsigned>(product_.patches.cells()), ThinTile::kRows, ThinTile::kCols) {
    tensors_ = {d.x, d.w, d.y};
  }
  std::size_t workspace_bytes() const override { return moments_.workspace_bytes(); }
  std::string implementation() const override { return kThinFusedName; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<NormConv2dForward>(pointers);
    check_on_16_bytes({args.y});
    enqueue_product(stream, tensors_[0].type, product_, args.x, args.w, nullptr, args.y,
                    moments_.into(workspace, args.moments, args.y_stats));
  }

 private:
  ThinProduct product_;
  MomentsOfTiles moments_;
};

bool thin_forward_fits(const Geometry& geometry, std::size_t shared_memory) {
  return product_of(geometry, false, false).shared_bytes() <= shared_memory;
}

}  // namespace

std::unique_ptr<CudaOp> make_thin_mma(const Conv2dForward& d) {
  return std::make_unique<ThinMmaForwardOp>(d, geometry_of(d.x, d.w, d.y, d.window));
}

std::unique_ptr<CudaOp> make_thin_mma(const NormConv2dForward& d) {
  return std::make_unique<ThinMmaNormForwardOp>(d, geometry_of(d.x, d.w, d.y, d.window));
}

}  // namespace dp::kernels::cuda
