// Matrix products of convolutions and linear layers: operand addresses and launch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "device_code.h"
#include "dp/shape.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/linear/cuda_gemm_choice.h"

namespace dp::kernels::cuda {

// A convolution as three matrix products. The operand matrices are never stored. An element's address is the sum
// of two points: one for its row, one for its position k in the sum. The same sum gives the cell's coordinates
// in the image; cells outside the image are zero. A linear layer is a convolution of one-cell images.

// A positive divisor below 2^31. Division takes one multiplication and one shift (Granlund and Montgomery 1994).
struct Count {
  int value = 1;
  unsigned multiplier = 1, shift = 0;

  Count() = default;
  explicit Count(int count) : value(count) {
    while (shift < 31 && (1ll << shift) < count) ++shift;
    multiplier = count > 0 ? static_cast<unsigned>(((1ull << 32) * ((1ull << shift) - count)) / count + 1) : 0;
  }
  __host__ __device__ operator int() const { return value; }
  __device__ int below(int n) const {  // n / value; n must not be negative
    const auto high = static_cast<unsigned>((static_cast<unsigned long long>(n) * multiplier) >> 32);
    return static_cast<int>((high + static_cast<unsigned>(n)) >> shift);
  }
};
__device__ inline int operator/(int n, const Count& count) { return count.below(n); }
__device__ inline int operator%(int n, const Count& count) { return n - count.below(n) * count.value; }

// Strides of a tensor, in elements.
struct Strides {
  long long image, row, col, channel;

  __device__ long long of_cell(long long image_index, int h, int w) const {
    return image_index * image + h * row + w * col;
  }
};

struct Geometry {
  int batch;
  Count channels, height, width;              // of x
  Count out_channels, out_height, out_width;  // of y
  int kernel_height;
  Count kernel_width;
  int stride, padding;
  // Channels of w are stored in groups of `group`; successive groups are `groups` elements apart. There
  // is one group, except for a linear layer whose weights and input have different memory orders.
  Count group;
  Strides x, w, y;  // in w: image is the output channel, row and col are the cell of the window
  long long groups;

  __device__ long long weight_channel(int c) const { return c % group * w.channel + c / group * groups; }
};

// Passed to kernels byte by byte, so there must be no padding: its bytes would be indeterminate.
static_assert(std::has_unique_object_representations_v<Geometry>);

struct Point {
  long long offset;  // of the element, from the start of the tensor
  int h, w;          // of the cell
};
inline constexpr int kOutside = -(1 << 29);  // outside of every image, also after a coordinate is added

// A Point as 16 bytes in shared memory, read with one load.
__device__ inline int4 packed(const Point& point) {
  const auto bits = static_cast<unsigned long long>(point.offset);
  return make_int4(static_cast<int>(bits & 0xffffffffu), static_cast<int>(bits >> 32), point.h, point.w);
}
__device__ inline Point unpacked(const int4& bits) {
  const unsigned long long low = static_cast<unsigned>(bits.x), high = static_cast<unsigned>(bits.y);
  return {static_cast<long long>(high << 32 | low), bits.z, bits.w};
}

struct Bounds {
  int height, width;
  __device__ bool hold(const Point& row, const Point& k) const {
    return static_cast<unsigned>(row.h + k.h) < static_cast<unsigned>(height) &&
           static_cast<unsigned>(row.w + k.w) < static_cast<unsigned>(width);
  }
};

// How sums become results. `splits`: ranges of k with separate partial sums. quads_a, quads_b: see Operand::load().
struct Ending {
  int splits;
  bool bias, relu;
  bool quads_a, quads_b;
};

// Beside parameter of Gemm: an operation on each result; this one changes nothing. Arguments:
// value, dense row (number of the cell or sample), column, index of the result in its tensor.
// These structs are passed to kernels byte by byte, so they must have no padding.
struct Nothing {
  __device__ float operator()(float value, int, int, long long) const { return value; }
};

// The three products. Each computes rows() x cols() results; a result is the sum of
// depth() products a(row, k) * b(col, k).
//   kAlongA, kAlongB   the operand is contiguous along k; otherwise along rows (of a) or cols (of b)
//   kColsInner         the result is contiguous along cols; otherwise along rows
//   kOfWeights         the result is a weight gradient: float32 for every operand type
//   part               number of an independent part of the product; only DataPoints has more than one

// y: rows are the cells of y, cols its channels, k runs over (kernel row, kernel col, channel).
struct ForwardPoints {
  static constexpr bool kAlongA = true, kAlongB = true, kColsInner = true, kOfWeights = false;
  const Geometry& g;
  __host__ __device__ ForwardPoints(const Geometry& geometry, int) : g(geometry) {}

  __host__ __device__ int rows() const { return all_rows(); }
  __host__ __device__ int all_rows() const { return g.batch * g.out_height * g.out_width; }
  __host__ __device__ int cols() const { return g.out_channels; }
  __host__ __device__ int depth() const { return g.kernel_height * g.kernel_width * g.channels; }
  __device__ Bounds bounds_a() const { return {g.height, g.width}; }
  __device__ Bounds bounds_b() const { return {1, 1}; }

  __device__ Point a_row(int m) const {
    const int w = m % g.out_width * g.stride - g.padding, line = m / g.out_width;
    const int h = line % g.out_height * g.stride - g.padding;
    return {g.x.of_cell(line / g.out_height, h, w), h, w};
  }
  __device__ Point a_k(int k) const {
    const int cell = k / g.channels, h = cell / g.kernel_width, w = cell % g.kernel_width;
    return {g.x.of_cell(0, h, w) + (k % g.channels) * g.x.channel, h, w};
  }
  __device__ Point b_row(int n) const { return {n * g.w.image, 0, 0}; }
  __device__ Point b_k(int k) const {
    const int cell = k / g.channels;
    return {g.w.of_cell(0, cell / g.kernel_width, cell % g.kernel_width) + g.weight_channel(k % g.channels), 0, 0};
  }
  __device__ int dense_row(int m) const { return m; }
  __device__ long long out_row(int m) const {
    const int line = m / g.out_width;
    return g.y.of_cell(line / g.out_height, line % g.out_height, m % g.out_width);
  }
  __device__ long long out_col(int n) const { return n * g.y.channel; }
};

// dx: there is one part for each pair (row mod stride, col mod stride) of a cell of x.
// Rows are the cells of x in the part, cols the channels of x. k runs over (kernel row,
// kernel col, channel of y), restricted to the kernel cells that reach a cell of y.
struct DataPoints {
  static constexpr bool kAlongA = true, kAlongB = false, kColsInner = true, kOfWeights = false;
  const Geometry& g;
  int first_h, first_w, lines, columns, tap_h, tap_w, taps_h, taps_w;

  __host__ __device__ DataPoints(const Geometry& geometry, int part) : g(geometry) {
    const int s = g.stride;
    first_h = part / s, first_w = part % s;
    lines = (g.height - first_h + s - 1) / s, columns = (g.width - first_w + s - 1) / s;
    tap_h = (first_h + g.padding) % s, tap_w = (first_w + g.padding) % s;
    taps_h = tap_h < g.kernel_height ? (g.kernel_height - 1 - tap_h) / s + 1 : 0;
    taps_w = tap_w < g.kernel_width ? (g.kernel_width - 1 - tap_w) / s + 1 : 0;
  }

  __host__ __device__ int rows() const { return g.batch * lines * columns; }
  __host__ __device__ int all_rows() const { return g.batch * g.height * g.width; }
  __host__ __device__ int cols() const { return g.channels; }
  __host__ __device__ int depth() const { return taps_h * taps_w * g.out_channels.value; }
  __device__ Bounds bounds_a() const { return {g.out_height, g.out_width}; }
  __device__ Bounds bounds_b() const { return {1, 1}; }

  __device__ Point a_row(int m) const {
    const int line = m / columns;
    const int w = (first_w + m % columns * g.stride + g.padding - tap_w) / g.stride;
    const int h = (first_h + line % lines * g.stride + g.padding - tap_h) / g.stride;
    return {g.y.of_cell(line / lines, h, w), h, w};
  }
  __device__ Point a_k(int k) const {
    const int cell = k / g.out_channels, h = -(cell / taps_w), w = -(cell % taps_w);
    return {g.y.of_cell(0, h, w) + (k % g.out_channels) * g.y.channel, h, w};
  }
  __device__ Point b_row(int n) const { return {g.weight_channel(n), 0, 0}; }
  __device__ Point b_k(int k) const {
    const int cell = k / g.out_channels;
    return {g.w.of_cell(k % g.out_channels, tap_h + cell / taps_w * g.stride, tap_w + cell % taps_w * g.stride), 0, 0};
  }
  __device__ int dense_row(int m) const {
    const int line = m / columns;
    return (line / lines * g.height + first_h + line % lines * g.stride) * g.width + first_w + m % columns * g.stride;
  }
  __device__ long long out_row(int cell) const {
    const int line = cell / g.width;
    return g.x.of_cell(line / g.height, line % g.height, cell % g.width);
  }
  __device__ long long out_col(int n) const { return n * g.x.channel; }
};

// dw: rows are (kernel row, kernel col, channel), cols the channels of y, k runs over the cells of y.
struct WeightsPoints {
  static constexpr bool kAlongA = false, kAlongB = false, kColsInner = false, kOfWeights = true;
  const Geometry& g;
  __host__ __device__ WeightsPoints(const Geometry& geometry, int) : g(geometry) {}

  __host__ __device__ int rows() const { return all_rows(); }
  __host__ __device__ int all_rows() const { return g.kernel_height * g.kernel_width * g.channels; }
  __host__ __device__ int cols() const { return g.out_channels; }
  __host__ __device__ int depth() const { return g.batch * g.out_height * g.out_width; }
  __device__ Bounds bounds_a() const { return {g.height, g.width}; }
  __device__ Bounds bounds_b() const { return {1, 1}; }

  __device__ Point a_row(int m) const {
    const int cell = m / g.channels, h = cell / g.kernel_width, w = cell % g.kernel_width;
    return {g.x.of_cell(0, h, w) + (m % g.channels) * g.x.channel, h, w};
  }
  __device__ Point a_k(int k) const {
    const int w = k % g.out_width * g.stride - g.padding, line = k / g.out_width;
    const int h = line % g.out_height * g.stride - g.padding;
    return {g.x.of_cell(line / g.out_height, h, w), h, w};
  }
  __device__ Point b_row(int n) const { return {n * g.y.channel, 0, 0}; }
  __device__ Point b_k(int k) const {
    const int line = k / g.out_width;
    return {g.y.of_cell(line / g.out_height, line % g.out_height, k % g.out_width), 0, 0};
  }
  __device__ int dense_row(int m) const { return m; }
  __device__ long long out_row(int m) const {
    const int cell = m / g.channels;
    return g.w.of_cell(0, cell / g.kernel_width, cell % g.kernel_width) + g.weight_channel(m % g.channels);
  }
  __device__ long long out_col(int n) const { return n * g.w.image; }
};

// A matrix product that is ready to be enqueued. Only for .cu files.

// Whether groups of `count` neighbouring channels are contiguous and aligned, provided
// that the tensor's start is aligned.
inline bool in_chunks(const Strides& s, int channels, int count) {
  return channels % count == 0 && s.channel == 1 && s.image % count == 0 && s.row % count == 0 && s.col % count == 0;
}
inline bool in_quads(const Strides& s, int channels) { return in_chunks(s, channels, 4); }
inline bool on_16_bytes(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }
inline bool input_in_quads(const Geometry& g) { return in_quads(g.x, g.channels); }
inline bool weights_in_quads(const Geometry& g) { return g.group >= g.channels && in_quads(g.w, g.channels); }
inline bool output_in_quads(const Geometry& g) { return in_quads(g.y, g.out_channels); }

template <typename Points>
GemmShape shape_of(const Geometry& geometry, int parts) {
  GemmShape shape{.parts = parts};
  for (int part = 0; part < parts; ++part) {
    const Points points(geometry, part);
    shape.rows = std::max<std::int64_t>(shape.rows, points.rows());
    shape.depth += points.depth();
    shape.cols = points.cols();
    shape.results = static_cast<std::int64_t>(points.all_rows()) * points.cols();
  }
  shape.depth = (shape.depth + parts - 1) / parts;
  return shape;
}

// Splits that one block adds; one more block adds the sums of all groups. A single block
// reads about 100 GB/s, far less than all blocks together.
inline constexpr int kEndGroup = 8;
inline int end_groups(int splits) { return (splits + kEndGroup - 1) / kEndGroup; }
// Counters that gemm_kernel needs: an upper bound for every tile.
inline unsigned counters_of(const GemmShape& shape, int splits) {
  constexpr int kLeastTile = 32;
  return blocks_for(shape.rows, kLeastTile) * blocks_for(shape.cols, kLeastTile) * static_cast<unsigned>(shape.parts) *
         static_cast<unsigned>(end_groups(splits) + 1);
}

// Beside: an operation on each result. Nothing does nothing; all others require float32 operands.
template <typename Points, typename Beside>
class Gemm {
 public:
  // type: of the operands. quads_a, quads_b: the operand's layout allows aligned reads of
  // four neighbours. enqueue() also checks the pointer.
  Gemm(DType type, const Geometry& geometry, int parts, bool bias, bool relu, bool quads_a, bool quads_b,
       const std::optional<GemmChoice>& choice)
      : Gemm(type, geometry, parts, bias, relu, quads_a, quads_b,
             choice ? *choice : choose(shape_of<Points>(geometry, parts))) {}
  Gemm(DType type, const Geometry& geometry, int parts, bool bias, bool relu, bool quads_a, bool quads_b,
       const GemmChoice& choice)
      : type_(type),
        geometry_(geometry),
        shape_(shape_of<Points>(geometry, parts)),
        choice_(choice),
        ending_{choice.splits, bias, relu, quads_a, quads_b} {
    if (choice.splits > 1) counters_ = zeroed_counters(counters_of(shape_, choice.splits));
  }

  std::size_t workspace_bytes() const {
    const std::int64_t columns = Points::kOfWeights && ending_.bias ? shape_.cols : 0;
    return choice_.splits == 1 ? 0
                               : static_cast<std::size_t>(choice_.splits * (shape_.results + columns)) * sizeof(float);
  }
  std::vector<GemmChoice> alternatives() const { return cuda::alternatives(shape_, kAlternatives); }
  std::string name() const { return gemm_name(choice_); }

  // Defined in cuda_gemm_tile.h. Results have the operands' type; results of WeightsPoints are float32.
  // columns: the bias gradient, for WeightsPoints with `bias`; otherwise null. bias: null for WeightsPoints.
  void enqueue(cudaStream_t stream, const char* kernel, const void* a, const void* b, const float* bias, void* out,
               float* columns, float* workspace, const Beside& beside) const;

 private:
  static constexpr std::size_t kAlternatives = 7;
  template <typename T>
  void enqueue_in(cudaStream_t stream, const char* kernel, const T* a, const T* b, const float* bias, void* out,
                  float* columns, float* workspace, const Beside& beside) const;
  template <typename Tile, typename T>
  void enqueue_tiles(cudaStream_t stream, const char* kernel, const T* a, const T* b, const float* bias, void* out,
                     float* columns, float* workspace, const Beside& beside) const;

  DType type_;
  Geometry geometry_;
  GemmShape shape_;
  GemmChoice choice_;
  Ending ending_;
  DeviceMemory counters_;  // for gemm_kernel; empty without splits
};

using ForwardGemm = Gemm<ForwardPoints, Nothing>;
using DataGemm = Gemm<DataPoints, Nothing>;
using WeightsGemm = Gemm<WeightsPoints, Nothing>;

}  // namespace dp::kernels::cuda
