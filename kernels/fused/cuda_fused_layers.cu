// Layers with the ops beside them (fused/op.h) as single kernels in float32, for layers so small that the cost of a
// launch matters.
#include "kernels/fused/cuda_fused_layers.h"

#include "kernels/conv/cuda_gemm_conv.h"
#include "kernels/conv/cuda_thin.h"
#include "kernels/device/cuda/cuda_op.h"
#include "kernels/fused/cuda_unfused.h"
#include "kernels/linear/cuda_gemm_beside.h"
#include "kernels/linear/cuda_gemm_tile.h"
#include "kernels/linear/cuda_linear.h"
#include "kernels/op_args.h"

namespace dp::kernels::cuda {

template class Gemm<ForwardPoints, DroppedOut>;
template class Gemm<DataPoints, Masked>;

namespace {

// Layers with up to this many multiplications are fused. The kernel of a larger layer takes tens of microseconds:
// a saved launch of 2 us matters little, and a library may be faster. An estimate, not measured on a GPU.
constexpr double kMostProducts = 1e9;

// Limits and block shape of linear_relu_backward_kernel.
constexpr int kMostOutputs = 32, kMostRows = 256, kFeatures = 32, kGroups = 8, kBackwardThreads = kFeatures * kGroups;
constexpr int kRowsAtOnce = 32;

constexpr std::int64_t kMostWeights = 8192;  // of LinearLoss, whose kernel uses one warp per sample

bool is_float(const TensorDesc& tensor) { return tensor.type == DType::f32; }
bool is_last(const TensorDesc& tensor) { return tensor.layout.any() || is_channels_last(tensor); }
double products(const TensorDesc& y, const TensorDesc& w) {
  return static_cast<double>(y.shape.numel()) * static_cast<double>(w.shape.numel() / w.shape[0]);
}

struct Fits {
  template <typename Desc>
  bool operator()(const Desc&) const {
    return false;
  }
  bool operator()(const LinearDropoutForward& d) const { return small(d.linear.y, d.linear.w); }
  bool operator()(const Conv2dReluBackwardData& d) const {
    return is_plain(d.data.dx, d.data.w, d.data.window) && small(d.data.dy, d.data.w);
  }
  bool operator()(const Conv2dPoolForward& d) const {
    return is_plain(d.conv.x, d.conv.w, d.conv.window) && small(d.conv.y, d.conv.w) &&
           d.conv.x.shape[1] > kThinChannels && d.pool.window.halves() && is_last(d.conv.y) && is_last(d.pool.y);
  }
  bool operator()(const LinearPoolBackwardData& d) const {
    const Shape &dy = d.pool.dy.shape, &dx = d.pool.dx.shape;
    return small(d.data.dy, d.data.w) && d.pool.window.halves() && dx[2] == 2 * dy[2] && dx[3] == 2 * dy[3] &&
           is_last(d.pool.dy) && is_last(d.pool.dx);
  }
  bool operator()(const LinearReluBackward& d) const {
    const Shape& x = d.weights.x.shape;
    return small(d.data.dy, d.data.w) && x.rank() == 2 && x[0] <= kMostRows && d.data.w.shape[0] <= kMostOutputs;
  }
  bool operator()(const LinearLoss& d) const {
    return is_float(d.linear.y) && !d.linear.relu && d.linear.x.shape.rank() == 2 &&
           d.linear.w.shape.numel() <= kMostWeights;
  }
  static bool small(const TensorDesc& y, const TensorDesc& w) { return is_float(y) && products(y, w) <= kMostProducts; }
};

class LinearDropoutOp final : public CudaOp {
 public:
  LinearDropoutOp(const LinearDropoutForward& d, const LinearTensors& t, const Geometry& g,
                  const CudaOpOptions& options)
      : gemm_(DType::f32, g, 1, d.linear.bias, d.linear.relu, input_in_quads(g), weights_in_quads(g), options.gemm),
        dropping_(dropping(d.dropout)) {
    tensors_ = {t.x, t.w, t.y};
  }
  std::size_t workspace_bytes() const override { return gemm_.workspace_bytes(); }
  std::string implementation() const override { return gemm_.name() + " + dropout"; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<LinearDropoutForward>(pointers);
    const DroppedOut beside{static_cast<const std::int64_t*>(args.samples), static_cast<const StepInputs*>(args.inputs),
                            dropping_};
    gemm_.enqueue(stream, "linear_dropout_forward", args.x, args.w, in(args.b), args.y, nullptr, out(workspace),
                  beside);
  }

 private:
  Gemm<ForwardPoints, DroppedOut> gemm_;
  Dropping dropping_;
};

class Conv2dReluDataOp final : public CudaOp {
 public:
  Conv2dReluDataOp(const Conv2dBackwardData& d, const Geometry& g, const CudaOpOptions& options)
      : gemm_(DType::f32, g, g.stride * g.stride, false, false, output_in_quads(g), weights_in_quads(g), options.gemm) {
    tensors_ = {d.dy, d.w, d.dx};
  }
  std::size_t workspace_bytes() const override { return gemm_.workspace_bytes(); }
  std::string implementation() const override { return gemm_.name() + " + relu"; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<Conv2dReluBackwardData>(pointers);
    gemm_.enqueue(stream, "conv2d_relu_backward_data", args.dy, args.w, nullptr, args.dx, nullptr, out(workspace),
                  Masked{in(args.x)});
  }

 private:
  Gemm<DataPoints, Masked> gemm_;
};

// Calls run.operator()<Tile>() with the tile type of `kind`.
template <typename Run>
void in_tile(TileKind kind, const Run& run) {
  switch (kind) {
    case TileKind::wide: return run.template operator()<WideTile>();
    case TileKind::tall: return run.template operator()<TallTile>();
    case TileKind::square: return run.template operator()<SquareTile>();
    case TileKind::narrow: return run.template operator()<NarrowTile>();
    case TileKind::small: return run.template operator()<SmallTile>();
  }
}

template <typename Tile>
dim3 tiles(const GemmShape& shape) {
  return dim3(blocks_for(shape.rows, Tile::kRows), blocks_for(shape.cols, Tile::kCols),
              static_cast<unsigned>(shape.parts));
}

GemmChoice unsplit(const GemmShape& shape) {
  GemmChoice choice = choose(shape);
  choice.splits = 1;
  return choice;
}

class Conv2dPoolOp final : public CudaOp {
 public:
  Conv2dPoolOp(const Conv2dPoolForward& d, const Geometry& g)
      : geometry_(g),
        shape_(shape_of<WindowPoints>(g, 1)),
        choice_(unsplit(shape_)),
        ending_{1, d.conv.bias, d.conv.relu, input_in_quads(g), weights_in_quads(g)},
        relu_(d.pool.relu),
        training_(d.pool.training),
        drops_(d.pool.training && d.pool.dropout) {
    if (drops_) dropping_ = dropping(*d.pool.dropout);
    tensors_ = {d.conv.x, d.conv.w, d.conv.y, d.pool.y};
  }
  std::string implementation() const override { return gemm_name(choice_) + " + pool"; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<Conv2dPoolForward>(pointers);
    if (shape_.results == 0) return;
    Ending ending = ending_;
    ending.quads_a = ending.quads_a && on_16_bytes(args.x), ending.quads_b = ending.quads_b && on_16_bytes(args.w);
    in_tile(choice_.tile, [&]<typename Tile>() {
      launch({"conv2d_pool_forward", tiles<Tile>(shape_), dim3(Tile::kThreads), stream}, gemm_pool_kernel<Tile>,
             in(args.x), in(args.w), in(args.b), out(args.y),
             training_ ? static_cast<std::uint8_t*>(args.mask) : nullptr,
             drops_ ? static_cast<const std::int64_t*>(args.samples) : nullptr,
             drops_ ? static_cast<const StepInputs*>(args.inputs) : nullptr, geometry_, ending, dropping_, relu_);
    });
  }

 private:
  Geometry geometry_;
  GemmShape shape_;
  GemmChoice choice_;
  Ending ending_;
  bool relu_, training_, drops_;
  Dropping dropping_;
};

class LinearPoolDataOp final : public CudaOp {
 public:
  LinearPoolDataOp(const LinearPoolBackwardData& d, const LinearTensors& t, const Geometry& g)
      : geometry_(g),
        shape_(shape_of<DataPoints>(g, 1)),
        choice_(unsplit(shape_)),
        ending_{1, false, false, output_in_quads(g), weights_in_quads(g)},
        pooled_{static_cast<int>(t.x.shape[2]), static_cast<int>(t.x.shape[3]), static_cast<int>(t.x.shape[1])} {
    if (d.pool.dropout) scale_ = dropping(*d.pool.dropout).scale;
    tensors_ = {t.y, t.w, t.x, d.pool.dx};
  }
  std::string implementation() const override { return gemm_name(choice_) + " + pool"; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<LinearPoolBackwardData>(pointers);
    if (shape_.results == 0) return;
    Ending ending = ending_;
    ending.quads_a = ending.quads_a && on_16_bytes(args.dy), ending.quads_b = ending.quads_b && on_16_bytes(args.w);
    in_tile(choice_.tile, [&]<typename Tile>() {
      launch({"linear_pool_backward_data", tiles<Tile>(shape_), dim3(Tile::kThreads), stream}, gemm_unpool_kernel<Tile>,
             in(args.dy), in(args.w), static_cast<const std::uint8_t*>(args.mask), out(args.dx), geometry_, ending,
             pooled_, scale_);
    });
  }

 private:
  Geometry geometry_;
  GemmShape shape_;
  GemmChoice choice_;
  Ending ending_;
  PooledImage pooled_;
  float scale_ = 1;
};

struct SmallLayer {
  int rows, features, outputs;
  float scale;
};

// blockIdx: tile of features. A thread has one feature: it computes every kGroups-th
// output of dw and every kGroups-th row of dx.
__global__ void __launch_bounds__(kBackwardThreads)
    linear_relu_backward_kernel(const float* x, const float* dy, const float* w, float* dw, float* db, float* dx,
                                SmallLayer layer) {
  DP_SHARED(float, gradients, [kRowsAtOnce][kMostOutputs]);
  DP_SHARED(float, weights, [kMostOutputs][kFeatures]);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kFeatures, group = thread / kFeatures;
  const int feature = static_cast<int>(blockIdx.x) * kFeatures + lane;
  const bool inside = feature < layer.features;
  for (int output = group; output < kMostOutputs; output += kGroups)
    weights[output][lane] = inside && output < layer.outputs ? w[output * layer.features + feature] : 0.f;

  constexpr int kOwn = kMostOutputs / kGroups;
  float sums[kOwn] = {};
  float bias = 0;  // of output `thread`
  for (int first = 0; first < layer.rows; first += kRowsAtOnce) {
    __syncthreads();
    for (int at = thread; at < kRowsAtOnce * kMostOutputs; at += kBackwardThreads) {
      const int row = at / kMostOutputs, output = at % kMostOutputs;
      const bool is = first + row < layer.rows && output < layer.outputs;
      gradients[row][output] = is ? dy[(first + row) * layer.outputs + output] : 0.f;
    }
    __syncthreads();
    const int rows = min(kRowsAtOnce, layer.rows - first);
    for (int row = 0; row < rows; ++row) {
      const float value = inside ? x[static_cast<long long>(first + row) * layer.features + feature] : 0.f;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) sums[i] = fmaf(value, gradients[row][i * kGroups + group], sums[i]);
      if (thread < kMostOutputs) bias += gradients[row][thread];
      if (row % kGroups != group || !inside) continue;
      float gradient = 0;
#pragma unroll
      for (int output = 0; output < kMostOutputs; ++output)
        gradient = fmaf(gradients[row][output], weights[output][lane], gradient);
      dx[static_cast<long long>(first + row) * layer.features + feature] = value > 0 ? gradient * layer.scale : 0.f;
    }
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int output = i * kGroups + group;
    if (inside && output < layer.outputs) dw[output * layer.features + feature] = sums[i];
  }
  if (blockIdx.x == 0 && db != nullptr && thread < layer.outputs) db[thread] = bias;
}

class LinearReluBackwardOp final : public CudaOp {
 public:
  LinearReluBackwardOp(const LinearReluBackward& d, const LinearTensors& t)
      : layer_{static_cast<int>(t.x.shape[0]), static_cast<int>(t.x.shape[1]), static_cast<int>(t.y.shape[1]),
               d.scale} {
    tensors_ = {t.x, t.y, t.w, t.w, t.x};
  }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<LinearReluBackward>(pointers);
    if (layer_.rows == 0) return;
    launch({"linear_relu_backward", dim3(blocks_for(layer_.features, kFeatures)), dim3(kBackwardThreads), stream},
           linear_relu_backward_kernel, in(args.x), in(args.dy), in(args.w), out(args.dw), out(args.db), out(args.dx),
           layer_);
  }

 private:
  SmallLayer layer_;
};

}  // namespace

bool fuses(const OpDesc& desc) { return std::visit(Fits(), desc); }

std::unique_ptr<CudaOp> make(const LinearDropoutForward& d, const CudaOpOptions& options) {
  if (!Fits()(d)) return unfused(d, options);
  const LinearTensors t = resolved_linear(d.linear.x, d.linear.w, d.linear.y);
  return std::make_unique<LinearDropoutOp>(d, t, linear_geometry(t.x, t.w), options);
}

std::unique_ptr<CudaOp> make(const Conv2dReluBackwardData& d, const CudaOpOptions& options) {
  if (!Fits()(d)) return unfused(d, options);
  const Conv2dBackwardData data{resolved_channels_last(d.data.dy), resolved_channels_last(d.data.w),
                                resolved_channels_last(d.data.dx), d.data.window};
  return std::make_unique<Conv2dReluDataOp>(data, geometry_of(data.dx, data.w, data.dy, data.window), options);
}

std::unique_ptr<CudaOp> make(const Conv2dPoolForward& d, const CudaOpOptions& options) {
  if (!Fits()(d)) return unfused(d, options);
  Conv2dPoolForward resolved = d;
  for (TensorDesc* const tensor : {&resolved.conv.x, &resolved.conv.w, &resolved.conv.y, &resolved.pool.y})
    *tensor = resolved_channels_last(*tensor);
  return std::make_unique<Conv2dPoolOp>(
      resolved, geometry_of(resolved.conv.x, resolved.conv.w, resolved.conv.y, resolved.conv.window));
}

std::unique_ptr<CudaOp> make(const LinearPoolBackwardData& d, const CudaOpOptions& options) {
  if (!Fits()(d)) return unfused(d, options);
  LinearPoolBackwardData resolved = d;
  resolved.pool.dx = resolved_channels_last(d.pool.dx);
  const LinearTensors t = resolved_linear(resolved_channels_last(d.data.dx), d.data.w, d.data.dy);
  return std::make_unique<LinearPoolDataOp>(resolved, t, linear_geometry(t.x, t.w));
}

std::unique_ptr<CudaOp> make(const LinearReluBackward& d, const CudaOpOptions& options) {
  if (!Fits()(d)) return unfused(d, options);
  return std::make_unique<LinearReluBackwardOp>(d, resolved_linear(d.weights.x, d.weights.dw, d.weights.dy));
}

std::unique_ptr<CudaOp> make(const LinearLoss& d, const CudaOpOptions& options) {
  return Fits()(d) ? make_linear_loss(d) : unfused(d, options);
}

}  // namespace dp::kernels::cuda
