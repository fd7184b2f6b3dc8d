// The part of cuDNN 9's backend C interface that the backend uses, loaded at run time. Neither the header nor the
// library is needed to build or to start. tests/simulated_cuda/cudnn_header_test.cpp compares the declarations with
// cudnn.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace dp::kernels::cuda {

enum class CudnnStatus : int {
  success = 0,
  not_initialized = 1001,
  bad_param = 2000,
  bad_param_null_pointer = 2002,
  bad_param_not_finalized = 2004,
  bad_param_size_insufficient = 2006,
  bad_param_attribute_type = 2010,
  bad_param_descriptor_type = 2012,
  not_supported = 3000,
  internal_error = 4000,
  execution_failed = 5000
};
enum class CudnnType : int { f32 = 0, f64 = 1, f16 = 2, bf16 = 9 };
enum class CudnnKind : int {  // of a descriptor
  pointwise = 0,
  convolution = 1,
  engine = 2,
  engine_config = 3,
  heuristics = 4,
  plan = 5,
  knob_choice = 7,
  operation_forward = 10,
  operation_backward_filter = 11,
  operation_backward_data = 12,
  operation_pointwise = 13,
  operation_statistics = 14,
  operation_graph = 15,
  variant_pack = 16,
  tensor = 17,
  operation_norm_backward = 23,
  device_properties = 38  // since 9.8
};
enum class CudnnAttribute : int {
  pointwise_mode = 0,
  pointwise_math_precision = 1,
  pointwise_nan = 2,
  convolution_compute_type = 100,
  convolution_mode = 101,
  convolution_dilations = 102,
  convolution_strides = 103,
  convolution_post_paddings = 104,
  convolution_pre_paddings = 105,
  convolution_spatial_dims = 106,
  heuristics_mode = 200,
  heuristics_graph = 201,
  heuristics_results = 202,
  heuristics_device_properties = 204,
  config_engine = 300,
  config_knob_choices = 302,
  plan_handle = 400,
  plan_config = 401,
  plan_workspace_size = 402,
  plan_device_properties = 407,
  knob_choice_type = 600,
  knob_choice_value = 601,
  forward_alpha = 700,
  forward_beta = 701,
  forward_convolution = 702,
  forward_w = 703,
  forward_x = 704,
  forward_y = 705,
  data_alpha = 706,
  data_beta = 707,
  data_convolution = 708,
  data_w = 709,
  data_dx = 710,
  data_dy = 711,
  filter_alpha = 712,
  filter_beta = 713,
  filter_convolution = 714,
  filter_dw = 715,
  filter_x = 716,
  filter_dy = 717,
  operation_pointwise_descriptor = 750,
  operation_pointwise_x = 751,
  operation_pointwise_b = 752,
  operation_pointwise_y = 753,
  operation_pointwise_alpha2 = 755,  // factor of b
  operation_pointwise_dx = 756,
  operation_pointwise_dy = 757,
  statistics_mode = 770,
  statistics_math_precision = 771,
  statistics_x = 772,
  statistics_sum = 773,
  statistics_squares = 774,
  graph_handle = 800,
  graph_operations = 801,
  tensor_alignment = 900,
  tensor_type = 901,
  tensor_dimensions = 902,
  tensor_strides = 903,
  tensor_id = 906,
  tensor_is_virtual = 907,
  variant_ids = 1000,
  variant_pointers = 1001,
  variant_workspace = 1003,
  engine_global_index = 1301,
  engine_notes = 1303,
  engine_behavior = 1305,
  norm_backward_math_precision = 1620,
  norm_backward_mean = 1621,
  norm_backward_inv_std = 1622,
  norm_backward_scale = 1623,
  norm_backward_x = 1624,
  norm_backward_dy = 1625,
  norm_backward_dscale = 1626,
  norm_backward_dbias = 1627,
  norm_backward_dy_factor = 1628,  // dx = dy * dy_factor + x * x_factor + constant
  norm_backward_x_factor = 1629,
  norm_backward_constant = 1630,
  device_properties_json = 2702
};
enum class CudnnAttributeType : int {
  handle = 0,
  data_type = 1,
  boolean = 2,
  i64 = 3,
  f32 = 4,
  pointer = 6,
  convolution_mode = 7,
  heuristics_mode = 8,
  knob_type = 9,
  nan_propagation = 10,
  note = 11,
  pointwise_mode = 14,
  descriptor = 15,
  statistics_mode = 16,
  behavior = 19,
  character = 24
};
enum class CudnnPointwise : int { add = 0, multiply = 1, relu = 100, relu_backward = 200 };
enum class CudnnNan : int { not_propagated = 0, propagated = 1 };
enum class CudnnStatistics : int { sum_and_squares = 0 };
enum class CudnnConvolutionMode : int { cross_correlation = 1 };
enum class CudnnHeuristics : int { b = 1, fallback = 2, a = 3 };
enum class CudnnKnob : int {};
enum class CudnnNote : int {  // numerical properties of an engine
  tensor_core = 0,            // for float32: TF32
  down_convert_inputs = 1,
  reduced_precision_reduction = 2,
  fft = 3,
  nondeterministic = 4,
  winograd = 5,
  winograd_4x4 = 6,
  winograd_6x6 = 7,
  winograd_13x13 = 8,
  strict_nan = 9
};

enum class CudnnBehavior : int { runtime_compilation = 0 };  // how an engine works

struct CudnnContext;
using CudnnHandle = CudnnContext*;
using CudnnBackendDescriptor = void*;

struct CudnnApi {
  std::size_t (*get_version)();
  const char* (*get_error_string)(CudnnStatus status);
  void (*get_last_error_string)(char* text, std::size_t bytes);
  CudnnStatus (*create)(CudnnHandle* handle);
  CudnnStatus (*destroy)(CudnnHandle handle);
  CudnnStatus (*set_stream)(CudnnHandle handle, cudaStream_t stream);
  CudnnStatus (*create_descriptor)(CudnnKind kind, CudnnBackendDescriptor* descriptor);
  CudnnStatus (*destroy_descriptor)(CudnnBackendDescriptor descriptor);
  CudnnStatus (*finalize)(CudnnBackendDescriptor descriptor);
  CudnnStatus (*set_attribute)(CudnnBackendDescriptor descriptor, CudnnAttribute name, CudnnAttributeType type,
                               std::int64_t count, const void* elements);
  CudnnStatus (*get_attribute)(CudnnBackendDescriptor descriptor, CudnnAttribute name, CudnnAttributeType type,
                               std::int64_t asked, std::int64_t* count, void* elements);
  CudnnStatus (*execute)(CudnnHandle handle, CudnnBackendDescriptor plan, CudnnBackendDescriptor variant_pack);
};

struct CudnnLibrary {
  const CudnnApi* api = nullptr;
  std::string file;    // the loaded file
  std::string reason;  // why api is null
};

// The library of this process, loaded at the first call: the file that DP_CUDNN_LIBRARY names, otherwise libcudnn.so.9.
const CudnnLibrary& cudnn();
// For tests: replaces the library that cudnn() returns.
void provide_cudnn(CudnnLibrary library);
std::string cudnn_release(const CudnnApi& api);  // "9.19.0"

}  // namespace dp::kernels::cuda
