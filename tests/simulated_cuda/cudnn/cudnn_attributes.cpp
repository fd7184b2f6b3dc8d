#include "simulated_cuda/cudnn/cudnn_attributes.h"

#include <algorithm>

namespace dp::simt {
namespace {

using A = CudnnAttribute;
using T = CudnnAttributeType;
using K = CudnnKind;

constexpr std::int64_t kMostDimensions = 8, kMany = 64;

struct Rule {
  K kind;
  A name;
  T type;
  std::int64_t least, most;  // number of elements
  bool required = true;
  K part = K::pointwise;  // the required kind, if the attribute is a descriptor
};

// alpha and beta of operations are float32, because that is their compute type.
constexpr Rule kRules[] = {
    {K::pointwise, A::pointwise_mode, T::pointwise_mode, 1, 1},
    {K::pointwise, A::pointwise_math_precision, T::data_type, 1, 1},
    {K::pointwise, A::pointwise_nan, T::nan_propagation, 1, 1, false},
    {K::convolution, A::convolution_compute_type, T::data_type, 1, 1},
    {K::convolution, A::convolution_mode, T::convolution_mode, 1, 1},
    {K::convolution, A::convolution_spatial_dims, T::i64, 1, 1},
    {K::convolution, A::convolution_dilations, T::i64, 1, kMostDimensions},
    {K::convolution, A::convolution_strides, T::i64, 1, kMostDimensions},
    {K::convolution, A::convolution_pre_paddings, T::i64, 1, kMostDimensions},
    {K::convolution, A::convolution_post_paddings, T::i64, 1, kMostDimensions},
    {K::heuristics, A::heuristics_mode, T::heuristics_mode, 1, 1},
    {K::heuristics, A::heuristics_graph, T::descriptor, 1, 1, true, K::operation_graph},
    {K::plan, A::plan_handle, T::handle, 1, 1},
    {K::plan, A::plan_config, T::descriptor, 1, 1, true, K::engine_config},
    {K::operation_forward, A::forward_convolution, T::descriptor, 1, 1, true, K::convolution},
    {K::operation_forward, A::forward_x, T::descriptor, 1, 1, true, K::tensor},
    {K::operation_forward, A::forward_w, T::descriptor, 1, 1, true, K::tensor},
    {K::operation_forward, A::forward_y, T::descriptor, 1, 1, true, K::tensor},
    {K::operation_forward, A::forward_alpha, T::f32, 1, 1},
    {K::operation_forward, A::forward_beta, T::f32, 1, 1},
    {K::operation_backward_data, A::data_convolution, T::descriptor, 1, 1, true, K::convolution},
    {K::operation_backward_data, A::data_dx, T::descriptor, 1, 1, true, K::tensor},
    {K::operation_backward_data, A::data_w, T::descriptor, 1, 1, true, K::tensor},
    {K::operation_backward_data, A::data_dy, T::descriptor, 1, 1, true, K::tensor},
    {K::operation_backward_data, A::data_alpha, T::f32, 1, 1},
    {K::operation_backward_data, A::data_beta, T::f32, 1, 1},
    {K::operation_backward_filter, A::filter_convolution, T::descriptor, 1, 1, true, K::convolution},
    {K::operation_backward_filter, A::filter_x, T::descriptor, 1, 1, true, K::tensor},
    {K::operation_backward_filter, A::filter_dw, T::descriptor, 1, 1, true, K::tensor},
    {K::operation_backward_filter, A::filter_dy, T::descriptor, 1, 1, true, K::tensor},
    {K::operation_backward_filter, A::filter_alpha, T::f32, 1, 1},
    {K::operation_backward_filter, A::filter_beta, T::f32, 1, 1},
    {K::operation_pointwise, A::operation_pointwise_descriptor, T::descriptor, 1, 1, true, K::pointwise},
    {K::operation_pointwise, A::operation_pointwise_x, T::descriptor, 1, 1, true, K::tensor},
    {K::operation_pointwise, A::operation_pointwise_b, T::descriptor, 1, 1, false, K::tensor},
    {K::operation_pointwise, A::operation_pointwise_y, T::descriptor, 1, 1, false, K::tensor},
    {K::operation_pointwise, A::operation_pointwise_dx, T::descriptor, 1, 1, false, K::tensor},
    {K::operation_pointwise, A::operation_pointwise_dy, T::descriptor, 1, 1, false, K::tensor},
    {K::operation_pointwise, A::operation_pointwise_alpha2, T::f32, 1, 1, false},
    {K::operation_statistics, A::statistics_mode, T::statistics_mode, 1, 1},
    {K::operation_statistics, A::statistics_math_precision, T::data_type, 1, 1},
    {K::operation_statistics, A::statistics_x, T::descriptor, 1, 1, true, K::tensor},
    {K::operation_statistics, A::statistics_sum, T::descriptor, 1, 1, true, K::tensor},
    {K::operation_statistics, A::statistics_squares, T::descriptor, 1, 1, true, K::tensor},
    {K::operation_norm_backward, A::norm_backward_math_precision, T::data_type, 1, 1},
    {K::operation_norm_backward, A::norm_backward_mean, T::descriptor, 1, 1, true, K::tensor},
    {K::operation_norm_backward, A::norm_backward_inv_std, T::descriptor, 1, 1, true, K::tensor},
    {K::operation_norm_backward, A::norm_backward_scale, T::descriptor, 1, 1, true, K::tensor},
    {K::operation_norm_backward, A::norm_backward_x, T::descriptor, 1, 1, true, K::tensor},
    {K::operation_norm_backward, A::norm_backward_dy, T::descriptor, 1, 1, true, K::tensor},
    {K::operation_norm_backward, A::norm_backward_dscale, T::descriptor, 1, 1, true, K::tensor},
    {K::operation_norm_backward, A::norm_backward_dbias, T::descriptor, 1, 1, true, K::tensor},
    {K::operation_norm_backward, A::norm_backward_dy_factor, T::descriptor, 1, 1, true, K::tensor},
    {K::operation_norm_backward, A::norm_backward_x_factor, T::descriptor, 1, 1, true, K::tensor},
    {K::operation_norm_backward, A::norm_backward_constant, T::descriptor, 1, 1, true, K::tensor},
    {K::operation_graph, A::graph_handle, T::handle, 1, 1},  // required before 9.8
    {K::operation_graph, A::graph_operations, T::descriptor, 1, kMany},
    {K::variant_pack, A::variant_ids, T::i64, 1, kMany},
    {K::variant_pack, A::variant_pointers, T::pointer, 1, kMany},
    {K::variant_pack, A::variant_workspace, T::pointer, 1, 1},
    {K::tensor, A::tensor_alignment, T::i64, 1, 1},
    {K::tensor, A::tensor_type, T::data_type, 1, 1},
    {K::tensor, A::tensor_dimensions, T::i64, 1, kMostDimensions},
    {K::tensor, A::tensor_strides, T::i64, 1, kMostDimensions},
    {K::tensor, A::tensor_id, T::i64, 1, 1},
    {K::tensor, A::tensor_is_virtual, T::boolean, 1, 1, false},
};

const Rule* rule_of(K kind, A name) {
  const auto* const found = std::find_if(std::begin(kRules), std::end(kRules),
                                         [&](const Rule& rule) { return rule.kind == kind && rule.name == name; });
  return found == std::end(kRules) ? nullptr : found;
}

std::string text_of(A name) { return "attribute " + std::to_string(static_cast<int>(name)); }

}  // namespace

std::size_t bytes_of(T type) {
  switch (type) {
    case T::boolean:
    case T::character: return 1;
    case T::handle:
    case T::i64:
    case T::pointer:
    case T::descriptor: return 8;
    default: return 4;
  }
}

std::string refused_attribute(K kind, A name, T type, std::int64_t count) {
  const Rule* const rule = rule_of(kind, name);
  if (rule == nullptr)
    return "a descriptor of kind " + std::to_string(static_cast<int>(kind)) + " has no " + text_of(name);
  if (rule->type != type) return text_of(name) + " has another type than " + std::to_string(static_cast<int>(type));
  if (count < rule->least || count > rule->most)
    return text_of(name) + " does not have " + std::to_string(count) + " elements";
  return {};
}

std::string missing_attribute(const CudnnObject& object) {
  for (const Rule& rule : kRules)
    if (rule.kind == object.kind && rule.required && object.attributes.count(rule.name) == 0) return text_of(rule.name);
  return {};
}

bool may_be(A name, K kind) {
  if (name == A::graph_operations)
    return kind == K::operation_forward || kind == K::operation_backward_data || kind == K::operation_backward_filter ||
           kind == K::operation_pointwise || kind == K::operation_statistics || kind == K::operation_norm_backward;
  return std::any_of(std::begin(kRules), std::end(kRules), [&](const Rule& rule) {
    return rule.name == name && rule.type == T::descriptor && rule.part == kind;
  });
}

}  // namespace dp::simt
