// Compares the declarations of kernels/device/cuda/libraries/cudnn_api.h with cuDNN's own header.
#include "kernels/device/cuda/libraries/cudnn_api.h"

#include <cudnn.h>

#include "simulated_cuda/same_functions.h"

namespace dp::test {

using namespace kernels::cuda;

template <>
struct Ours<cudnnStatus_t> {
  using type = CudnnStatus;
};
template <>
struct Ours<struct cudnnContext> {
  using type = CudnnContext;
};
template <>
struct Ours<cudnnBackendDescriptorType_t> {
  using type = CudnnKind;
};
template <>
struct Ours<cudnnBackendAttributeName_t> {
  using type = CudnnAttribute;
};
template <>
struct Ours<cudnnBackendAttributeType_t> {
  using type = CudnnAttributeType;
};

namespace {

static_assert(same<cudnnGetVersion, decltype(CudnnApi::get_version)>);
static_assert(same<cudnnGetErrorString, decltype(CudnnApi::get_error_string)>);
static_assert(same<cudnnGetLastErrorString, decltype(CudnnApi::get_last_error_string)>);
static_assert(same<cudnnCreate, decltype(CudnnApi::create)>);
static_assert(same<cudnnDestroy, decltype(CudnnApi::destroy)>);
static_assert(same<cudnnSetStream, decltype(CudnnApi::set_stream)>);
static_assert(same<cudnnBackendCreateDescriptor, decltype(CudnnApi::create_descriptor)>);
static_assert(same<cudnnBackendDestroyDescriptor, decltype(CudnnApi::destroy_descriptor)>);
static_assert(same<cudnnBackendFinalize, decltype(CudnnApi::finalize)>);
static_assert(same<cudnnBackendSetAttribute, decltype(CudnnApi::set_attribute)>);
static_assert(same<cudnnBackendGetAttribute, decltype(CudnnApi::get_attribute)>);
static_assert(same<cudnnBackendExecute, decltype(CudnnApi::execute)>);
static_assert(sizeof(cudnnDataType_t) == sizeof(CudnnType) && sizeof(cudnnBackendKnobType_t) == sizeof(CudnnKnob));
static_assert(sizeof(cudnnBackendNumericalNote_t) == sizeof(CudnnNote));

static_assert(equal(CUDNN_STATUS_SUCCESS, CudnnStatus::success));
static_assert(equal(CUDNN_STATUS_NOT_INITIALIZED, CudnnStatus::not_initialized));
static_assert(equal(CUDNN_STATUS_BAD_PARAM, CudnnStatus::bad_param));
static_assert(equal(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, CudnnStatus::bad_param_null_pointer));
static_assert(equal(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, CudnnStatus::bad_param_not_finalized));
static_assert(equal(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT, CudnnStatus::bad_param_size_insufficient));
static_assert(equal(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, CudnnStatus::bad_param_attribute_type));
static_assert(equal(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, CudnnStatus::bad_param_descriptor_type));
static_assert(equal(CUDNN_STATUS_NOT_SUPPORTED, CudnnStatus::not_supported));
static_assert(equal(CUDNN_STATUS_INTERNAL_ERROR, CudnnStatus::internal_error));
static_assert(equal(CUDNN_STATUS_EXECUTION_FAILED, CudnnStatus::execution_failed));
static_assert(equal(CUDNN_DATA_FLOAT, CudnnType::f32));
static_assert(equal(CUDNN_DATA_DOUBLE, CudnnType::f64));
static_assert(equal(CUDNN_DATA_HALF, CudnnType::f16));
static_assert(equal(CUDNN_DATA_BFLOAT16, CudnnType::bf16));
static_assert(equal(CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CudnnKind::pointwise));
static_assert(equal(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CudnnKind::convolution));
static_assert(equal(CUDNN_BACKEND_ENGINE_DESCRIPTOR, CudnnKind::engine));
static_assert(equal(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, CudnnKind::engine_config));
static_assert(equal(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CudnnKind::heuristics));
static_assert(equal(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CudnnKind::plan));
static_assert(equal(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, CudnnKind::knob_choice));
static_assert(equal(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, CudnnKind::operation_forward));
static_assert(equal(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                    CudnnKind::operation_backward_filter));
static_assert(equal(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, CudnnKind::operation_backward_data));
static_assert(equal(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CudnnKind::operation_pointwise));
static_assert(equal(CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR, CudnnKind::operation_statistics));
static_assert(equal(CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR, CudnnKind::operation_norm_backward));
static_assert(equal(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CudnnKind::operation_graph));
static_assert(equal(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CudnnKind::variant_pack));
static_assert(equal(CUDNN_BACKEND_TENSOR_DESCRIPTOR, CudnnKind::tensor));
static_assert(equal(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, CudnnKind::device_properties));
static_assert(equal(CUDNN_ATTR_POINTWISE_MODE, CudnnAttribute::pointwise_mode));
static_assert(equal(CUDNN_ATTR_POINTWISE_MATH_PREC, CudnnAttribute::pointwise_math_precision));
static_assert(equal(CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CudnnAttribute::pointwise_nan));
static_assert(equal(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CudnnAttribute::convolution_compute_type));
static_assert(equal(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CudnnAttribute::convolution_mode));
static_assert(equal(CUDNN_ATTR_CONVOLUTION_DILATIONS, CudnnAttribute::convolution_dilations));
static_assert(equal(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CudnnAttribute::convolution_strides));
static_assert(equal(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CudnnAttribute::convolution_post_paddings));
static_assert(equal(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CudnnAttribute::convolution_pre_paddings));
static_assert(equal(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CudnnAttribute::convolution_spatial_dims));
static_assert(equal(CUDNN_ATTR_ENGINEHEUR_MODE, CudnnAttribute::heuristics_mode));
static_assert(equal(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CudnnAttribute::heuristics_graph));
static_assert(equal(CUDNN_ATTR_ENGINEHEUR_RESULTS, CudnnAttribute::heuristics_results));
static_assert(equal(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CudnnAttribute::heuristics_device_properties));
static_assert(equal(CUDNN_ATTR_ENGINECFG_ENGINE, CudnnAttribute::config_engine));
static_assert(equal(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CudnnAttribute::config_knob_choices));
static_assert(equal(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CudnnAttribute::plan_handle));
static_assert(equal(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CudnnAttribute::plan_config));
static_assert(equal(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CudnnAttribute::plan_workspace_size));
static_assert(equal(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CudnnAttribute::plan_device_properties));
static_assert(equal(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CudnnAttribute::knob_choice_type));
static_assert(equal(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CudnnAttribute::knob_choice_value));
static_assert(equal(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CudnnAttribute::forward_alpha));
static_assert(equal(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CudnnAttribute::forward_beta));
static_assert(equal(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CudnnAttribute::forward_convolution));
static_assert(equal(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CudnnAttribute::forward_w));
static_assert(equal(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CudnnAttribute::forward_x));
static_assert(equal(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, CudnnAttribute::forward_y));
static_assert(equal(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CudnnAttribute::data_alpha));
static_assert(equal(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, CudnnAttribute::data_beta));
static_assert(equal(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, CudnnAttribute::data_convolution));
static_assert(equal(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, CudnnAttribute::data_w));
static_assert(equal(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CudnnAttribute::data_dx));
static_assert(equal(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, CudnnAttribute::data_dy));
static_assert(equal(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CudnnAttribute::filter_alpha));
static_assert(equal(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA, CudnnAttribute::filter_beta));
static_assert(equal(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, CudnnAttribute::filter_convolution));
static_assert(equal(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, CudnnAttribute::filter_dw));
static_assert(equal(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CudnnAttribute::filter_x));
static_assert(equal(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, CudnnAttribute::filter_dy));
static_assert(equal(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CudnnAttribute::operation_pointwise_descriptor));
static_assert(equal(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CudnnAttribute::operation_pointwise_x));
static_assert(equal(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CudnnAttribute::operation_pointwise_b));
static_assert(equal(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, CudnnAttribute::operation_pointwise_y));
static_assert(equal(CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, CudnnAttribute::operation_pointwise_alpha2));
static_assert(equal(CUDNN_ATTR_OPERATION_POINTWISE_DXDESC, CudnnAttribute::operation_pointwise_dx));
static_assert(equal(CUDNN_ATTR_OPERATION_POINTWISE_DYDESC, CudnnAttribute::operation_pointwise_dy));
static_assert(equal(CUDNN_ATTR_OPERATION_GENSTATS_MODE, CudnnAttribute::statistics_mode));
static_assert(equal(CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, CudnnAttribute::statistics_math_precision));
static_assert(equal(CUDNN_ATTR_OPERATION_GENSTATS_XDESC, CudnnAttribute::statistics_x));
static_assert(equal(CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, CudnnAttribute::statistics_sum));
static_assert(equal(CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, CudnnAttribute::statistics_squares));
static_assert(equal(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MATH_PREC, CudnnAttribute::norm_backward_math_precision));
static_assert(equal(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MEAN_DESC, CudnnAttribute::norm_backward_mean));
static_assert(equal(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_INVSTD_DESC, CudnnAttribute::norm_backward_inv_std));
static_assert(equal(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_BN_SCALE_DESC, CudnnAttribute::norm_backward_scale));
static_assert(equal(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_X_DESC, CudnnAttribute::norm_backward_x));
static_assert(equal(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DY_DESC, CudnnAttribute::norm_backward_dy));
static_assert(equal(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC, CudnnAttribute::norm_backward_dscale));
static_assert(equal(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC, CudnnAttribute::norm_backward_dbias));
static_assert(equal(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC, CudnnAttribute::norm_backward_dy_factor));
static_assert(equal(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC, CudnnAttribute::norm_backward_x_factor));
static_assert(equal(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_BIAS, CudnnAttribute::norm_backward_constant));
static_assert(equal(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CudnnAttribute::graph_handle));
static_assert(equal(CUDNN_ATTR_OPERATIONGRAPH_OPS, CudnnAttribute::graph_operations));
static_assert(equal(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CudnnAttribute::tensor_alignment));
static_assert(equal(CUDNN_ATTR_TENSOR_DATA_TYPE, CudnnAttribute::tensor_type));
static_assert(equal(CUDNN_ATTR_TENSOR_DIMENSIONS, CudnnAttribute::tensor_dimensions));
static_assert(equal(CUDNN_ATTR_TENSOR_STRIDES, CudnnAttribute::tensor_strides));
static_assert(equal(CUDNN_ATTR_TENSOR_UNIQUE_ID, CudnnAttribute::tensor_id));
static_assert(equal(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CudnnAttribute::tensor_is_virtual));
static_assert(equal(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CudnnAttribute::variant_ids));
static_assert(equal(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CudnnAttribute::variant_pointers));
static_assert(equal(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CudnnAttribute::variant_workspace));
static_assert(equal(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CudnnAttribute::engine_global_index));
static_assert(equal(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CudnnAttribute::engine_notes));
static_assert(equal(CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CudnnAttribute::engine_behavior));
static_assert(equal(CUDNN_TYPE_BEHAVIOR_NOTE, CudnnAttributeType::behavior));
static_assert(equal(CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION, CudnnBehavior::runtime_compilation));
static_assert(equal(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CudnnAttribute::device_properties_json));
static_assert(equal(CUDNN_TYPE_HANDLE, CudnnAttributeType::handle));
static_assert(equal(CUDNN_TYPE_DATA_TYPE, CudnnAttributeType::data_type));
static_assert(equal(CUDNN_TYPE_BOOLEAN, CudnnAttributeType::boolean));
static_assert(equal(CUDNN_TYPE_INT64, CudnnAttributeType::i64));
static_assert(equal(CUDNN_TYPE_FLOAT, CudnnAttributeType::f32));
static_assert(equal(CUDNN_TYPE_VOID_PTR, CudnnAttributeType::pointer));
static_assert(equal(CUDNN_TYPE_CONVOLUTION_MODE, CudnnAttributeType::convolution_mode));
static_assert(equal(CUDNN_TYPE_HEUR_MODE, CudnnAttributeType::heuristics_mode));
static_assert(equal(CUDNN_TYPE_KNOB_TYPE, CudnnAttributeType::knob_type));
static_assert(equal(CUDNN_TYPE_NAN_PROPOGATION, CudnnAttributeType::nan_propagation));
static_assert(equal(CUDNN_TYPE_NUMERICAL_NOTE, CudnnAttributeType::note));
static_assert(equal(CUDNN_TYPE_POINTWISE_MODE, CudnnAttributeType::pointwise_mode));
static_assert(equal(CUDNN_TYPE_BACKEND_DESCRIPTOR, CudnnAttributeType::descriptor));
static_assert(equal(CUDNN_TYPE_GENSTATS_MODE, CudnnAttributeType::statistics_mode));
static_assert(equal(CUDNN_TYPE_CHAR, CudnnAttributeType::character));
static_assert(equal(CUDNN_POINTWISE_ADD, CudnnPointwise::add));
static_assert(equal(CUDNN_POINTWISE_MUL, CudnnPointwise::multiply));
static_assert(equal(CUDNN_POINTWISE_RELU_FWD, CudnnPointwise::relu));
static_assert(equal(CUDNN_POINTWISE_RELU_BWD, CudnnPointwise::relu_backward));
static_assert(equal(CUDNN_NOT_PROPAGATE_NAN, CudnnNan::not_propagated));
static_assert(equal(CUDNN_PROPAGATE_NAN, CudnnNan::propagated));
static_assert(equal(CUDNN_GENSTATS_SUM_SQSUM, CudnnStatistics::sum_and_squares));
static_assert(equal(CUDNN_CROSS_CORRELATION, CudnnConvolutionMode::cross_correlation));
static_assert(equal(CUDNN_HEUR_MODE_B, CudnnHeuristics::b));
static_assert(equal(CUDNN_HEUR_MODE_FALLBACK, CudnnHeuristics::fallback));
static_assert(equal(CUDNN_HEUR_MODE_A, CudnnHeuristics::a));
static_assert(equal(CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CudnnNote::tensor_core));
static_assert(equal(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS, CudnnNote::down_convert_inputs));
static_assert(equal(CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION, CudnnNote::reduced_precision_reduction));
static_assert(equal(CUDNN_NUMERICAL_NOTE_FFT, CudnnNote::fft));
static_assert(equal(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC, CudnnNote::nondeterministic));
static_assert(equal(CUDNN_NUMERICAL_NOTE_WINOGRAD, CudnnNote::winograd));
static_assert(equal(CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4, CudnnNote::winograd_4x4));
static_assert(equal(CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6, CudnnNote::winograd_6x6));
static_assert(equal(CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13, CudnnNote::winograd_13x13));
static_assert(equal(CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP, CudnnNote::strict_nan));

}  // namespace
}  // namespace dp::test
