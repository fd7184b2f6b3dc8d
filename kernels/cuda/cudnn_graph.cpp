#include "kernels/cuda/cudnn_graph.h"

#include "kernels/cuda/libraries.h"
#include "kernels/cuda/tensor_layout.h"

namespace dp::kernels::cuda {
namespace {

using Direction = CudnnConvolution::Direction;
constexpr std::size_t kMostParts = 16;

CudnnType type_of(DType type) {
  switch (type) {
    case DType::f32: return CudnnType::f32;
    case DType::bf16: return CudnnType::bf16;
    case DType::f16: return CudnnType::f16;
    default: throw CudnnRefusal(std::string("no convolution of ") + to_string(type));
  }
}

struct TensorSpec {
  std::int64_t id;
  CudnnType type;
  std::array<std::int64_t, 4> dimensions, strides;
  std::int64_t alignment = kTensorAlignment;
  bool is_virtual = false;
};

TensorSpec spec_of(std::int64_t id, const TensorDesc& tensor, bool batched) {
  TensorSpec spec{id, type_of(tensor.type), {}, {}, batched ? sample_alignment(tensor) : kTensorAlignment};
  for (std::size_t i = 0; i < 4; ++i) spec.dimensions[i] = tensor.shape[static_cast<int>(i)];
  const auto [n, c, h, w] = spec.dimensions;
  if (is_channels_last(tensor))
    spec.strides = {c * h * w, 1, w * c, c};
  else
    spec.strides = {c * h * w, h * w, w, 1};
  return spec;
}

void fill(CudnnDescriptor& tensor, const TensorSpec& spec) {
  tensor.set(CudnnAttribute::tensor_type, spec.type);
  tensor.set<std::int64_t>(CudnnAttribute::tensor_dimensions, std::span<const std::int64_t>(spec.dimensions));
  tensor.set<std::int64_t>(CudnnAttribute::tensor_strides, std::span<const std::int64_t>(spec.strides));
  tensor.set(CudnnAttribute::tensor_id, spec.id);
  tensor.set(CudnnAttribute::tensor_alignment, spec.alignment);
  if (spec.is_virtual) tensor.set(CudnnAttribute::tensor_is_virtual, true);
  tensor.finalize();
}

void fill(CudnnDescriptor& convolution, const Window& window) {
  const std::array<std::int64_t, 2> ones{1, 1}, strides{window.stride, window.stride},
      paddings{window.padding, window.padding};
  convolution.set(CudnnAttribute::convolution_compute_type, CudnnType::f32);
  convolution.set(CudnnAttribute::convolution_mode, CudnnConvolutionMode::cross_correlation);
  convolution.set(CudnnAttribute::convolution_spatial_dims, std::int64_t{2});
  convolution.set<std::int64_t>(CudnnAttribute::convolution_dilations, std::span<const std::int64_t>(ones));
  convolution.set<std::int64_t>(CudnnAttribute::convolution_strides, std::span<const std::int64_t>(strides));
  convolution.set<std::int64_t>(CudnnAttribute::convolution_pre_paddings, std::span<const std::int64_t>(paddings));
  convolution.set<std::int64_t>(CudnnAttribute::convolution_post_paddings, std::span<const std::int64_t>(paddings));
  convolution.finalize();
}

struct Names {  // of an operation's attributes
  CudnnKind kind;
  CudnnAttribute convolution, x, w, y, alpha, beta;
};
Names names_of(Direction direction) {
  using A = CudnnAttribute;
  switch (direction) {
    case Direction::forward:
      return {CudnnKind::operation_forward,
              A::forward_convolution,
              A::forward_x,
              A::forward_w,
              A::forward_y,
              A::forward_alpha,
              A::forward_beta};
    case Direction::backward_data:
      return {CudnnKind::operation_backward_data,
              A::data_convolution,
              A::data_dx,
              A::data_w,
              A::data_dy,
              A::data_alpha,
              A::data_beta};
    case Direction::backward_weights: break;
  }
  return {CudnnKind::operation_backward_filter,
          A::filter_convolution,
          A::filter_x,
          A::filter_dw,
          A::filter_dy,
          A::filter_alpha,
          A::filter_beta};
}

}  // namespace

CudnnGraph::CudnnGraph(const CudnnTarget& target, const CudnnConvolution& c) : api_(target.api) {
  parts_.reserve(kMostParts);  // parts are referred to
  const auto tensor = [&](const TensorSpec& spec) -> CudnnDescriptor& {
    CudnnDescriptor& made = add(CudnnKind::tensor);
    fill(made, spec);
    return made;
  };
  std::vector<CudnnBackendDescriptor> operations;
  const TensorSpec y = spec_of(kCudnnY, c.y, /*batched=*/true);
  std::int64_t next_id = kCudnnY + 1;
  // Between operations: float32, in no memory.
  const auto between = [&] {
    TensorSpec spec = y;
    spec.id = next_id++, spec.type = CudnnType::f32, spec.alignment = kTensorAlignment, spec.is_virtual = true;
    return spec;
  };
  const auto pointwise = [&](CudnnPointwise mode, const CudnnDescriptor& from, const CudnnDescriptor* beside,
                             const CudnnDescriptor& to) {
    CudnnDescriptor& what = add(CudnnKind::pointwise);
    what.set(CudnnAttribute::pointwise_mode, mode);
    what.set(CudnnAttribute::pointwise_math_precision, CudnnType::f32);
    what.finalize();
    CudnnDescriptor& operation = add(CudnnKind::operation_pointwise);
    operation.set(CudnnAttribute::operation_pointwise_descriptor, what);
    operation.set(CudnnAttribute::operation_pointwise_x, from);
    if (beside != nullptr) operation.set(CudnnAttribute::operation_pointwise_b, *beside);
    operation.set(CudnnAttribute::operation_pointwise_y, to);
    operation.finalize();
    operations.push_back(operation.get());
  };

  CudnnDescriptor& convolution = add(CudnnKind::convolution);
  fill(convolution, c.window);
  const CudnnDescriptor& x = tensor(spec_of(kCudnnX, c.x, /*batched=*/true));
  const CudnnDescriptor& w = tensor(spec_of(kCudnnW, c.w, /*batched=*/false));
  const CudnnDescriptor* result = &tensor(c.bias || c.relu ? between() : y);
  const Names names = names_of(c.direction);
  CudnnDescriptor& operation = add(names.kind);
  operation.set(names.convolution, convolution);
  operation.set(names.x, x);
  operation.set(names.w, w);
  operation.set(names.y, *result);
  operation.set(names.alpha, 1.0f);
  operation.set(names.beta, 0.0f);
  operation.finalize();
  operations.push_back(operation.get());
  if (c.bias) {
    const std::int64_t channels = c.w.shape[0];
    const CudnnDescriptor& bias =
        tensor({kCudnnBias, CudnnType::f32, {1, channels, 1, 1}, {channels, 1, channels, channels}});
    const CudnnDescriptor& to = tensor(c.relu ? between() : y);
    pointwise(CudnnPointwise::add, *result, &bias, to);
    result = &to;
  }
  if (c.relu) pointwise(CudnnPointwise::relu, *result, nullptr, tensor(y));

  graph_ = CudnnDescriptor(*api_, CudnnKind::operation_graph);
  graph_.set(CudnnAttribute::graph_operations, operations);
  if (target.handle != nullptr) graph_.set(CudnnAttribute::graph_handle, target.handle);
  graph_.finalize();
}

}  // namespace dp::kernels::cuda
