#include "kernels/conv/cuda_cudnn_norm.h"

#include "kernels/device/cuda/cuda_op.h"
#include "kernels/device/cuda/libraries/library_kernels.h"
#include "kernels/norm/cuda_library.h"
#include "kernels/op_args.h"

namespace dp::kernels::cuda {
namespace {

using Tensor = CudnnGraphBuilder::Tensor;

CudnnTensor activation(std::int64_t id, const TensorDesc& desc) { return tensor_of(id, desc, /*batched=*/true); }

// The input of the convolution: x, or x normalised.
Tensor input(CudnnGraphBuilder& graph, const CudnnNormConvolution& c) {
  const CudnnTensor spec = activation(kCudnnX, c.convolution.x);
  const std::int64_t channels = c.convolution.x.shape[1];
  Tensor x = graph.tensor(spec);
  if (!c.norm) return x;
  Tensor scaled = graph.between(spec), normal = graph.between(spec), z = graph.between(spec, spec.type);
  graph.multiply(x, graph.tensor(per_channel(kCudnnScale, channels, spec.type)), scaled);
  graph.add(scaled, graph.tensor(per_channel(kCudnnBias, channels, spec.type)), normal);
  graph.relu(normal, z);
  return z;
}

void forward_or_weights(CudnnGraphBuilder& graph, const CudnnNormConvolution& c) {
  const CudnnConvolution& own = c.convolution;
  Tensor x = input(graph, c), w = graph.tensor(tensor_of(kCudnnW, own.w, /*batched=*/false)),
         y = graph.tensor(activation(kCudnnY, own.y));
  graph.convolve(own.direction, own.window, x, w, y);
  if (!c.statistics) return;
  const std::int64_t channels = own.y.shape[1];
  graph.statistics(y, graph.tensor(per_channel(kCudnnSum, channels)),
                   graph.tensor(per_channel(kCudnnSquares, channels)));
}

// The batch normalisation whose output gradient is computed.
struct Normalized {
  Tensor x, mean, inv_std, scale, z;
};
Normalized normalized(CudnnGraphBuilder& graph, const TensorDesc& desc) {
  const CudnnTensor like = activation(kCudnnX, desc);
  const auto numbers = [&](std::int64_t id) -> Tensor { return graph.tensor(per_channel(id, desc.shape[1])); };
  const Normalized own{graph.tensor(like), numbers(kCudnnMean), numbers(kCudnnInvStd), numbers(kCudnnScale),
                       graph.between(like)};
  Tensor centred = graph.between(like), xhat = graph.between(like), scaled = graph.between(like);
  graph.subtract(own.x, own.mean, centred);
  graph.multiply(centred, own.inv_std, xhat);
  graph.multiply(xhat, own.scale, scaled);
  graph.add(scaled, numbers(kCudnnBias), own.z);
  return own;
}

void data_gradient(CudnnGraphBuilder& graph, const CudnnNormConvolution& c) {
  const CudnnConvolution& own = c.convolution;
  const CudnnTensor like = activation(kCudnnX, own.x);
  Tensor dy = graph.tensor(activation(kCudnnY, own.y)), w = graph.tensor(tensor_of(kCudnnW, own.w, /*batched=*/false)),
         dz = graph.tensor(activation(kCudnnDz, own.x));
  const CudnnDescriptor* gradient = &graph.between(like);
  graph.convolve(own.direction, own.window, *gradient, w, dy);
  if (c.add) {
    Tensor both = c.mask ? graph.between(like) : dz;
    graph.add(*gradient, graph.tensor(activation(kCudnnDy2, own.x)), both);
    gradient = &both;
  }
  if (!c.mask) return;
  const auto result = [&]() -> Tensor { return graph.tensor(activation(kCudnnResult, own.x)); };
  if (c.result && !c.sums) return graph.relu_backward(*gradient, result(), dz);
  const Normalized norm = normalized(graph, own.x);
  const CudnnDescriptor* z = &norm.z;
  if (c.result) {
    Tensor sum = graph.between(like);
    graph.add(norm.z, result(), sum);
    z = &sum;
  }
  graph.relu_backward(*gradient, *z, dz);
  if (!c.sums) return;
  const auto sums = [&](std::int64_t id) -> Tensor { return graph.tensor(per_channel(id, own.x.shape[1])); };
  graph.norm_backward({norm.x, dz, norm.mean, norm.inv_std, norm.scale, sums(kCudnnDScale), sums(kCudnnDBias),
                       sums(kCudnnDyFactor), sums(kCudnnXFactor), sums(kCudnnConstant)});
}

}  // namespace

std::shared_ptr<const CudnnGraph> norm_convolution_graph(const CudnnTarget& target, const CudnnNormConvolution& c) {
  CudnnGraphBuilder graph(target);
  if (c.convolution.direction == CudnnDirection::backward_data)
    data_gradient(graph, c);
  else
    forward_or_weights(graph, c);
  return graph.finish();
}

namespace {

// Base of all ops here: a run, and pieces of the workspace after cuDNN's part.
class CudnnNormOp : public CudaOp {
 public:
  std::size_t workspace_bytes() const override { return bytes_ + kLibraryAlignment; }
  std::string implementation() const override { return run_.candidate(); }
  bool uses_libraries() const override { return true; }

 protected:
  CudnnNormOp(const CudnnFused& fused, CudnnRun run)
      : fused_(fused), run_(std::move(run)), bytes_(to_alignment(run_.workspace_bytes())) {}

  // Reserves a piece and returns its offset in the workspace. For constructors of derived ops.
  std::size_t piece(std::size_t bytes) { return std::exchange(bytes_, bytes_ + to_alignment(bytes)); }
  std::size_t numbers(std::int64_t count, DType type = DType::f32) {
    return piece(static_cast<std::size_t>(count) * size_of(type));
  }
  static void* at(void* workspace, std::size_t piece) { return static_cast<std::byte*>(workspace) + piece; }

  const CudnnConvolution& convolution() const { return fused_.graph.convolution; }

  const CudnnFused fused_;
  CudnnRun run_;

 private:
  static constexpr std::size_t to_alignment(std::size_t bytes) {
    return (bytes + kLibraryAlignment - 1) / kLibraryAlignment * kLibraryAlignment;
  }
  std::size_t bytes_;
};

class ForwardOp final : public CudnnNormOp {
 public:
  ForwardOp(const CudnnFused& fused, CudnnRun run) : CudnnNormOp(fused, std::move(run)) {
    const CudnnConvolution& c = convolution();
    tensors_ = {c.x, c.w, c.y};
    if (fused.graph.norm) scale_ = numbers(c.x.shape[1], c.x.type), offset_ = numbers(c.x.shape[1], c.x.type);
    if (fused.graph.statistics) sum_ = numbers(c.y.shape[1]), squares_ = numbers(c.y.shape[1]);
  }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<NormConv2dForward>(pointers);
    const CudnnConvolution& c = convolution();
    const auto [norm, statistics] = std::pair(fused_.graph.norm, fused_.graph.statistics);
    void* const ours = aligned_workspace(workspace);
    void *const scale = norm ? at(ours, scale_) : nullptr, *const offset = norm ? at(ours, offset_) : nullptr,
                *const sum = statistics ? at(ours, sum_) : nullptr,
                *const squares = statistics ? at(ours, squares_) : nullptr;
    run_.check_alignment(c.x, args.x), run_.check_alignment(c.y, args.y);
    if (norm)
      enqueue_scale_and_offset(stream, c.x.type, args.stats, args.weight, args.bias, scale, offset, c.x.shape[1]);
    run_.enqueue(stream, {{{kCudnnX, args.x},
                           {kCudnnW, args.w},
                           {kCudnnY, args.y},
                           {kCudnnScale, scale},
                           {kCudnnBias, offset},
                           {kCudnnSum, sum},
                           {kCudnnSquares, squares}},
                          ours});
    const std::int64_t channels = c.y.shape[1];
    if (fused_.moments)
      enqueue_moments_of_sums(stream, sum, squares, c.y.shape.numel() / channels, args.moments,
                              fused_.eps ? args.y_stats : nullptr, fused_.eps.value_or(0), channels);
  }

 private:
  std::size_t scale_ = 0, offset_ = 0, sum_ = 0, squares_ = 0;
};

class WeightsOp final : public CudnnNormOp {
 public:
  WeightsOp(const CudnnFused& fused, CudnnRun run) : CudnnNormOp(fused, std::move(run)) {
    const CudnnConvolution& c = convolution();
    const DType type = c.x.type;
    tensors_ = {c.x, c.y, {c.w.shape, DType::f32, with_type(c.w, DType::f32)}};
    scale_ = numbers(c.x.shape[1], type), offset_ = numbers(c.x.shape[1], type);
    if (widens()) narrow_ = numbers(c.w.shape.numel(), type);
  }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<NormConv2dBackwardWeights>(pointers);
    const CudnnConvolution& c = convolution();
    void* const ours = aligned_workspace(workspace);
    void *const scale = at(ours, scale_), *const offset = at(ours, offset_),
                *const dw = widens() ? at(ours, narrow_) : args.dw;
    run_.check_alignment(c.x, args.x), run_.check_alignment(c.y, args.dy);
    enqueue_scale_and_offset(stream, c.x.type, args.stats, args.weight, args.bias, scale, offset, c.x.shape[1]);
    run_.enqueue(
        stream,
        {{{kCudnnX, args.x}, {kCudnnW, dw}, {kCudnnY, args.dy}, {kCudnnScale, scale}, {kCudnnBias, offset}}, ours});
    if (widens()) enqueue_cast(stream, dw, c.w.type, args.dw, DType::f32, c.w.shape.numel());
  }

 private:
  bool widens() const { return convolution().w.type != DType::f32; }

  std::size_t scale_ = 0, offset_ = 0, narrow_ = 0;
};

class DataOp final : public CudnnNormOp {
 public:
  DataOp(const CudnnFused& fused, CudnnRun run) : CudnnNormOp(fused, std::move(run)) {
    const CudnnConvolution& c = convolution();
    tensors_ = {c.y, c.w, c.x};
    for (std::size_t& own : pieces_) own = numbers(c.x.shape[1]);
  }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<NormConv2dBackwardData>(pointers);
    const CudnnConvolution& c = convolution();
    const std::int64_t channels = c.x.shape[1];
    const bool result = fused_.graph.result;
    const ReluMask mask = !fused_.relu ? ReluMask::open : result ? ReluMask::elsewhere : ReluMask::normalized;
    void* const ours = aligned_workspace(workspace);
    std::array<void*, kPieces> own;
    for (std::size_t i = 0; i < kPieces; ++i) own[i] = at(ours, pieces_[i]);
    const auto [mean, inv_std, scale, offset, dscale, dbias, dy_factor, x_factor, constant] = own;
    void *const dy2 = fused_.graph.add ? args.dy2 : nullptr, *const y = result ? args.y : nullptr;
    run_.check_alignment(c.y, args.dy);
    for (const void* const tensor : {dy2, args.x, y, args.dz}) run_.check_alignment(c.x, tensor);
    enqueue_backward_numbers(stream, mask, args.stats, args.weight, args.bias, mean, inv_std, scale, offset, channels);
    run_.enqueue(stream, {{{kCudnnY, args.dy},
                           {kCudnnW, args.w},
                           {kCudnnDy2, dy2},
                           {kCudnnX, args.x},
                           {kCudnnResult, y},
                           {kCudnnMean, mean},
                           {kCudnnInvStd, inv_std},
                           {kCudnnScale, scale},
                           {kCudnnBias, offset},
                           {kCudnnDScale, dscale},
                           {kCudnnDBias, dbias},
                           {kCudnnDyFactor, dy_factor},
                           {kCudnnXFactor, x_factor},
                           {kCudnnConstant, constant},
                           {kCudnnDz, args.dz}},
                          ours});
    enqueue_backward_sums(stream, dscale, dbias, args.sums, args.dweight, args.dbias, channels);
  }

 private:
  static constexpr std::size_t kPieces = 9;
  std::array<std::size_t, kPieces> pieces_{};
};

// cuDNN applies the mask; our kernel computes the sums afterwards.
class MaskedDataOp final : public CudnnNormOp {
 public:
  MaskedDataOp(const CudnnFused& fused, CudnnRun run)
      : CudnnNormOp(fused, std::move(run)),
        sums_(make(BatchNormBackwardSums{convolution().x, false}, CudaOpOptions{})) {
    const CudnnConvolution& c = convolution();
    tensors_ = {c.y, c.w, c.x};
    if (normalizes())
      for (std::size_t& own : pieces_) own = numbers(c.x.shape[1]);
    sums_piece_ = piece(sums_->workspace_bytes());
  }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<NormConv2dBackwardData>(pointers);
    const CudnnConvolution& c = convolution();
    void* const ours = aligned_workspace(workspace);
    std::array<void*, kPieces> own{};
    if (normalizes()) {
      for (std::size_t i = 0; i < kPieces; ++i) own[i] = at(ours, pieces_[i]);
      enqueue_backward_numbers(stream, ReluMask::normalized, args.stats, args.weight, args.bias, own[0], own[1], own[2],
                               own[3], c.x.shape[1]);
    }
    void *const dy2 = fused_.graph.add ? args.dy2 : nullptr, *const x = normalizes() ? args.x : nullptr,
                *const y = fused_.graph.result ? args.y : nullptr, *const dz = args.dz;
    run_.check_alignment(c.y, args.dy);
    for (const void* const tensor : {dy2, x, y, dz}) run_.check_alignment(c.x, tensor);
    run_.enqueue(stream, {{{kCudnnY, args.dy},
                           {kCudnnW, args.w},
                           {kCudnnDy2, dy2},
                           {kCudnnX, x},
                           {kCudnnResult, y},
                           {kCudnnMean, own[0]},
                           {kCudnnInvStd, own[1]},
                           {kCudnnScale, own[2]},
                           {kCudnnBias, own[3]},
                           {kCudnnDz, dz}},
                          ours});
    const Pointers<BatchNormBackwardSums> of_sums{
        .dy = dz, .x = args.x, .stats = args.stats, .sums = args.sums, .dweight = args.dweight, .dbias = args.dbias};
    sums_->run_on(stream, in_order<BatchNormBackwardSums, void*>(of_sums), at(ours, sums_piece_));
  }

 private:
  bool normalizes() const { return fused_.graph.mask && !fused_.graph.result; }

  static constexpr std::size_t kPieces = 4;
  const std::unique_ptr<CudaOp> sums_;
  std::array<std::size_t, kPieces> pieces_{};
  std::size_t sums_piece_ = 0;
};

std::unique_ptr<CudaOp> make_op(const CudnnFused& fused, CudnnRun run) {
  switch (fused.graph.convolution.direction) {
    case CudnnDirection::forward: return std::make_unique<ForwardOp>(fused, std::move(run));
    case CudnnDirection::backward_data:
      if (!fused.graph.sums) return std::make_unique<MaskedDataOp>(fused, std::move(run));
      return std::make_unique<DataOp>(fused, std::move(run));
    case CudnnDirection::backward_weights: break;
  }
  return std::make_unique<WeightsOp>(fused, std::move(run));
}

std::vector<Candidate> candidates_of(const char* name, const CudnnFused& fused, const std::string& ending,
                                     const CudaOpOptions& options) {
  return candidates_of_graph(
      {name, ending}, [&](const CudnnTarget& target) { return norm_convolution_graph(target, fused.graph); },
      [fused](CudnnRun run, bool) { return make_op(fused, std::move(run)); }, options);
}

// The inner convolution; nullopt unless it is plain, and x and y have the same 16-bit type.
std::optional<CudnnConvolution> low_convolution(CudnnDirection direction, const TensorDesc& x, const TensorDesc& w,
                                                const TensorDesc& y, const Window& window) {
  if (size_of(x.type) != 2 || x.type != y.type || !is_plain(x, w, window)) return std::nullopt;
  const auto last = resolved_channels_last;
  return CudnnConvolution{direction, last(x), last(w), last(y), window};
}

}  // namespace

std::optional<CudnnFused> cudnn_norm_convolution(const OpDesc& desc) {
  CudnnFused fused;
  const auto of = [&](const std::optional<CudnnConvolution>& convolution) -> std::optional<CudnnFused> {
    if (!convolution) return std::nullopt;
    fused.graph.convolution = *convolution;
    return fused;
  };
  if (const auto* const d = std::get_if<NormConv2dForward>(&desc)) {
    if (!d->norm && !d->moments) return std::nullopt;
    fused.graph.norm = d->norm, fused.graph.statistics = fused.moments = d->moments, fused.eps = d->eps;
    return of(low_convolution(CudnnDirection::forward, d->x, d->w, d->y, d->window));
  }
  if (const auto* const d = std::get_if<NormConv2dBackwardData>(&desc)) {
    fused.graph.add = d->add, fused.graph.result = d->relu && !d->renormalize, fused.relu = d->relu;
    return of(low_convolution(CudnnDirection::backward_data, d->dx, d->w, d->dy, d->window));
  }
  if (const auto* const d = std::get_if<NormConv2dBackwardWeights>(&desc)) {
    fused.graph.norm = true;
    return of(low_convolution(CudnnDirection::backward_weights, d->x, d->dw, d->dy, d->window));
  }
  return std::nullopt;
}

std::vector<Candidate> cudnn_norm_candidates(const char* name, const CudnnFused& asked, const CudaOpOptions& options) {
  CudnnFused fused = asked;
  const std::string ending = " fused";
  std::vector<Candidate> candidates = candidates_of(name, fused, ending, options);
  if (!candidates.empty()) return candidates;
  CudnnConvolution& c = fused.graph.convolution;
  if (c.direction == CudnnDirection::forward && !fused.graph.statistics) {  // no engine normalises without statistics
    fused.graph.statistics = true;
    return candidates_of(name, fused, ending, options);
  }
  if (c.direction == CudnnDirection::backward_data && (fused.relu || fused.graph.add)) {
    fused.graph.sums = false, fused.graph.mask = fused.relu;
    return candidates_of(name, fused, ending + " mask", options);
  }
  if (c.direction == CudnnDirection::backward_weights && c.w.type != c.x.type) {  // no engine widens to float32
    c.w = narrow_weights(c);
    return candidates_of(name, fused, ending + " widened", options);
  }
  return candidates;
}

}  // namespace dp::kernels::cuda
