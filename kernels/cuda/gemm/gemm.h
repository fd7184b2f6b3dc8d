// A matrix product that is ready to be enqueued. Only for .cu files.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "dp/shape.h"
#include "kernels/cuda/gemm/gemm_choice.h"
#include "kernels/cuda/gemm/gemm_geometry.h"
#include "kernels/cuda/runtime/owner.h"

namespace dp::kernels::cuda {

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

// Beside: an operation on each result (see Nothing in gemm_geometry.h). With any other
// than Nothing, operands are float32.
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

  // Defined in gemm_enqueue.h. Results have the operands' type; results of WeightsPoints are float32.
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
