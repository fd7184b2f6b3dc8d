#include "kernels/cuda/vendor/cudnn/cudnn_graph.h"

#include "kernels/cuda/runtime/tensor_layout.h"

namespace dp::kernels::cuda {
namespace {

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

struct Names {  // attributes of an operation
  CudnnKind kind;
  CudnnAttribute convolution, x, w, y, alpha, beta;
};
Names names_of(CudnnDirection direction) {
  using A = CudnnAttribute;
  switch (direction) {
    case CudnnDirection::forward:
      return {CudnnKind::operation_forward,
              A::forward_convolution,
              A::forward_x,
              A::forward_w,
              A::forward_y,
              A::forward_alpha,
              A::forward_beta};
    case CudnnDirection::backward_data:
      return {CudnnKind::operation_backward_data,
              A::data_convolution,
              A::data_dx,
              A::data_w,
              A::data_dy,
              A::data_alpha,
              A::data_beta};
    case CudnnDirection::backward_weights: break;
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

CudnnType cudnn_type(DType type) {
  switch (type) {
    case DType::f32: return CudnnType::f32;
    case DType::bf16: return CudnnType::bf16;
    case DType::f16: return CudnnType::f16;
    default: throw CudnnRefusal(std::string("convolutions are not supported in ") + to_string(type));
  }
}

CudnnTensor tensor_of(std::int64_t id, const TensorDesc& tensor, bool batched) {
  CudnnTensor spec{id, cudnn_type(tensor.type), {}, {}, batched ? sample_alignment(tensor) : kTensorAlignment};
  for (std::size_t i = 0; i < 4; ++i) spec.dimensions[i] = tensor.shape[static_cast<int>(i)];
  const auto [n, c, h, w] = spec.dimensions;
  if (is_channels_last(tensor))
    spec.strides = {c * h * w, 1, w * c, c};
  else
    spec.strides = {c * h * w, h * w, w, 1};
  return spec;
}

CudnnTensor per_channel(std::int64_t id, std::int64_t channels, CudnnType type) {
  return {id, type, {1, channels, 1, 1}, {channels, 1, channels, channels}};
}

CudnnGraph::CudnnGraph(const CudnnTarget& target, std::deque<CudnnDescriptor> parts,
                       const std::vector<CudnnBackendDescriptor>& operations)
    : parts_(std::move(parts)), graph_(*target.api, CudnnKind::operation_graph) {
  graph_.set(CudnnAttribute::graph_operations, operations);
  if (target.handle != nullptr) graph_.set(CudnnAttribute::graph_handle, target.handle);
  graph_.finalize();
}

std::shared_ptr<const CudnnGraph> CudnnGraphBuilder::finish() {
  return std::make_shared<const CudnnGraph>(target_, std::move(parts_), operations_);
}

CudnnGraphBuilder::Tensor CudnnGraphBuilder::tensor(const CudnnTensor& spec) {
  CudnnDescriptor& tensor = part(CudnnKind::tensor);
  tensor.set(CudnnAttribute::tensor_type, spec.type);
  tensor.set<std::int64_t>(CudnnAttribute::tensor_dimensions, std::span<const std::int64_t>(spec.dimensions));
  tensor.set<std::int64_t>(CudnnAttribute::tensor_strides, std::span<const std::int64_t>(spec.strides));
  tensor.set(CudnnAttribute::tensor_id, spec.id);
  tensor.set(CudnnAttribute::tensor_alignment, spec.alignment);
  if (spec.is_virtual) tensor.set(CudnnAttribute::tensor_is_virtual, true);
  tensor.finalize();
  return tensor;
}

CudnnGraphBuilder::Tensor CudnnGraphBuilder::between(CudnnTensor like, CudnnType type) {
  like.id = next_++, like.type = type, like.alignment = kTensorAlignment, like.is_virtual = true;
  return tensor(like);
}

void CudnnGraphBuilder::finish_operation(CudnnDescriptor& operation) {
  operation.finalize();
  operations_.push_back(operation.get());
}

void CudnnGraphBuilder::convolve(CudnnDirection direction, const Window& window, Tensor x, Tensor w, Tensor y) {
  CudnnDescriptor& convolution = part(CudnnKind::convolution);
  fill(convolution, window);
  const Names names = names_of(direction);
  CudnnDescriptor& operation = part(names.kind);
  operation.set(names.convolution, convolution);
  operation.set(names.x, x);
  operation.set(names.w, w);
  operation.set(names.y, y);
  operation.set(names.alpha, 1.0f);
  operation.set(names.beta, 0.0f);
  finish_operation(operation);
}

CudnnDescriptor& CudnnGraphBuilder::pointwise(CudnnPointwise mode) {
  CudnnDescriptor& what = part(CudnnKind::pointwise);
  what.set(CudnnAttribute::pointwise_mode, mode);
  what.set(CudnnAttribute::pointwise_math_precision, CudnnType::f32);
  if (mode == CudnnPointwise::relu || mode == CudnnPointwise::relu_backward)
    what.set(CudnnAttribute::pointwise_nan, CudnnNan::propagated);  // otherwise NaN becomes 0 and hides a failed run
  what.finalize();
  CudnnDescriptor& operation = part(CudnnKind::operation_pointwise);
  operation.set(CudnnAttribute::operation_pointwise_descriptor, what);
  return operation;
}

void CudnnGraphBuilder::relu(Tensor x, Tensor y) {
  CudnnDescriptor& operation = pointwise(CudnnPointwise::relu);
  operation.set(CudnnAttribute::operation_pointwise_x, x);
  operation.set(CudnnAttribute::operation_pointwise_y, y);
  finish_operation(operation);
}

void CudnnGraphBuilder::binary(CudnnPointwise mode, Tensor a, Tensor b, float factor, Tensor y) {
  CudnnDescriptor& operation = pointwise(mode);
  operation.set(CudnnAttribute::operation_pointwise_x, a);
  operation.set(CudnnAttribute::operation_pointwise_b, b);
  operation.set(CudnnAttribute::operation_pointwise_y, y);
  if (factor != 1) operation.set(CudnnAttribute::operation_pointwise_alpha2, factor);
  finish_operation(operation);
}

void CudnnGraphBuilder::relu_backward(Tensor dy, Tensor x, Tensor dx) {
  CudnnDescriptor& operation = pointwise(CudnnPointwise::relu_backward);
  operation.set(CudnnAttribute::operation_pointwise_dy, dy);
  operation.set(CudnnAttribute::operation_pointwise_x, x);
  operation.set(CudnnAttribute::operation_pointwise_dx, dx);
  finish_operation(operation);
}

void CudnnGraphBuilder::statistics(Tensor x, Tensor sum, Tensor squares) {
  CudnnDescriptor& operation = part(CudnnKind::operation_statistics);
  operation.set(CudnnAttribute::statistics_mode, CudnnStatistics::sum_and_squares);
  operation.set(CudnnAttribute::statistics_math_precision, CudnnType::f32);
  operation.set(CudnnAttribute::statistics_x, x);
  operation.set(CudnnAttribute::statistics_sum, sum);
  operation.set(CudnnAttribute::statistics_squares, squares);
  finish_operation(operation);
}

void CudnnGraphBuilder::norm_backward(const NormBackward& norm) {
  CudnnDescriptor& operation = part(CudnnKind::operation_norm_backward);
  operation.set(CudnnAttribute::norm_backward_math_precision, CudnnType::f32);
  operation.set(CudnnAttribute::norm_backward_x, norm.x);
  operation.set(CudnnAttribute::norm_backward_dy, norm.dy);
  operation.set(CudnnAttribute::norm_backward_mean, norm.mean);
  operation.set(CudnnAttribute::norm_backward_inv_std, norm.inv_std);
  operation.set(CudnnAttribute::norm_backward_scale, norm.scale);
  operation.set(CudnnAttribute::norm_backward_dscale, norm.dscale);
  operation.set(CudnnAttribute::norm_backward_dbias, norm.dbias);
  operation.set(CudnnAttribute::norm_backward_dy_factor, norm.dy_factor);
  operation.set(CudnnAttribute::norm_backward_x_factor, norm.x_factor);
  operation.set(CudnnAttribute::norm_backward_constant, norm.constant);
  finish_operation(operation);
}

}  // namespace dp::kernels::cuda
