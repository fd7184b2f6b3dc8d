// Compares the declarations of kernels/device/cuda/libraries/cublaslt.h with cuBLASLt's own header.
#include "kernels/device/cuda/libraries/cublaslt.h"

#include <cublasLt.h>

#include <cstddef>

#include "simulated_cuda/same_functions.h"

namespace dp::test {

using namespace kernels::cuda;

template <>
struct Ours<cublasStatus_t> {
  using type = CublasStatus;
};
template <>
struct Ours<cublasComputeType_t> {
  using type = CublasCompute;
};
template <>
struct Ours<struct cublasLtContext> {
  using type = CublasLtContext;
};
template <>
struct Ours<cublasLtMatmulDescOpaque_t> {
  using type = CublasLtMatmulDesc;
};
template <>
struct Ours<cublasLtMatrixLayoutOpaque_t> {
  using type = CublasLtMatrix;
};
template <>
struct Ours<cublasLtMatmulPreferenceOpaque_t> {
  using type = CublasLtPreference;
};
template <>
struct Ours<cublasLtMatmulAlgo_t> {
  using type = CublasLtAlgo;
};
template <>
struct Ours<cublasLtMatmulHeuristicResult_t> {
  using type = CublasLtHeuristic;
};
template <>
struct Ours<cublasLtMatmulDescAttributes_t> {
  using type = CublasLtMatmulAttribute;
};
template <>
struct Ours<cublasLtMatmulPreferenceAttributes_t> {
  using type = CublasLtPreferenceAttribute;
};
template <>
struct Ours<cublasLtMatmulAlgoConfigAttributes_t> {
  using type = CublasLtConfigAttribute;
};

namespace {

static_assert(same<cublasLtGetVersion, decltype(CublasLtApi::get_version)>);
static_assert(same<cublasLtGetStatusString, decltype(CublasLtApi::get_status_string)>);
static_assert(same<cublasLtCreate, decltype(CublasLtApi::create)>);
static_assert(same<cublasLtDestroy, decltype(CublasLtApi::destroy)>);
static_assert(same<cublasLtMatmulDescCreate, decltype(CublasLtApi::matmul_create)>);
static_assert(same<cublasLtMatmulDescDestroy, decltype(CublasLtApi::matmul_destroy)>);
static_assert(same<cublasLtMatmulDescSetAttribute, decltype(CublasLtApi::matmul_set)>);
static_assert(same<cublasLtMatrixLayoutCreate, decltype(CublasLtApi::matrix_create)>);
static_assert(same<cublasLtMatrixLayoutDestroy, decltype(CublasLtApi::matrix_destroy)>);
static_assert(same<cublasLtMatmulPreferenceCreate, decltype(CublasLtApi::preference_create)>);
static_assert(same<cublasLtMatmulPreferenceDestroy, decltype(CublasLtApi::preference_destroy)>);
static_assert(same<cublasLtMatmulPreferenceSetAttribute, decltype(CublasLtApi::preference_set)>);
static_assert(same<cublasLtMatmulAlgoGetHeuristic, decltype(CublasLtApi::get_heuristic)>);
static_assert(same<cublasLtMatmulAlgoConfigGetAttribute, decltype(CublasLtApi::get_config)>);
static_assert(same<cublasLtMatmul, decltype(CublasLtApi::matmul)>);

static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(CublasLtAlgo));
static_assert(sizeof(cublasLtMatmulHeuristicResult_t) == sizeof(CublasLtHeuristic));
static_assert(offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize) == offsetof(CublasLtHeuristic, workspace_bytes));
static_assert(offsetof(cublasLtMatmulHeuristicResult_t, state) == offsetof(CublasLtHeuristic, state));
static_assert(offsetof(cublasLtMatmulHeuristicResult_t, wavesCount) == offsetof(CublasLtHeuristic, waves));

static_assert(equal(CUBLAS_STATUS_SUCCESS, CublasStatus::success));
static_assert(equal(CUBLAS_STATUS_NOT_INITIALIZED, CublasStatus::not_initialized));
static_assert(equal(CUBLAS_STATUS_INVALID_VALUE, CublasStatus::invalid_value));
static_assert(equal(CUBLAS_STATUS_EXECUTION_FAILED, CublasStatus::execution_failed));
static_assert(equal(CUBLAS_STATUS_NOT_SUPPORTED, CublasStatus::not_supported));
static_assert(equal(CUBLAS_COMPUTE_32F, CublasCompute::f32));
static_assert(equal(CUBLAS_COMPUTE_32F_FAST_TF32, CublasCompute::tf32));
static_assert(equal(CUBLAS_OP_N, CublasOperation::none));
static_assert(equal(CUBLAS_OP_T, CublasOperation::transpose));
static_assert(equal(CUBLASLT_EPILOGUE_DEFAULT, CublasLtEpilogue::none));
static_assert(equal(CUBLASLT_EPILOGUE_RELU, CublasLtEpilogue::relu));
static_assert(equal(CUBLASLT_EPILOGUE_BIAS, CublasLtEpilogue::bias));
static_assert(equal(CUBLASLT_EPILOGUE_RELU_BIAS, CublasLtEpilogue::relu_bias));
static_assert(equal(CUBLASLT_EPILOGUE_BGRADB, CublasLtEpilogue::bias_gradient_b));
static_assert(equal(CUBLASLT_REDUCTION_SCHEME_NONE, CublasLtReduction::none));
static_assert(equal(CUBLASLT_REDUCTION_SCHEME_MASK, CublasLtReduction::all));
static_assert(equal(CUBLASLT_MATMUL_DESC_TRANSA, CublasLtMatmulAttribute::transpose_a));
static_assert(equal(CUBLASLT_MATMUL_DESC_TRANSB, CublasLtMatmulAttribute::transpose_b));
static_assert(equal(CUBLASLT_MATMUL_DESC_EPILOGUE, CublasLtMatmulAttribute::epilogue));
static_assert(equal(CUBLASLT_MATMUL_DESC_BIAS_POINTER, CublasLtMatmulAttribute::bias_pointer));
static_assert(equal(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CublasLtMatmulAttribute::bias_type));
static_assert(equal(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, CublasLtPreferenceAttribute::most_workspace));
static_assert(equal(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CublasLtPreferenceAttribute::reduction_mask));
static_assert(equal(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CublasLtPreferenceAttribute::alignment_a));
static_assert(equal(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, CublasLtPreferenceAttribute::alignment_b));
static_assert(equal(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CublasLtPreferenceAttribute::alignment_c));
static_assert(equal(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, CublasLtPreferenceAttribute::alignment_d));
static_assert(equal(CUBLASLT_ALGO_CONFIG_ID, CublasLtConfigAttribute::id));
static_assert(equal(CUBLASLT_ALGO_CONFIG_TILE_ID, CublasLtConfigAttribute::tile));
static_assert(equal(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, CublasLtConfigAttribute::splits));
static_assert(equal(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, CublasLtConfigAttribute::reduction));
static_assert(equal(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, CublasLtConfigAttribute::swizzling));
static_assert(equal(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, CublasLtConfigAttribute::custom_option));
static_assert(equal(CUBLASLT_ALGO_CONFIG_STAGES_ID, CublasLtConfigAttribute::stages));
static_assert(equal(CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, CublasLtConfigAttribute::inner_shape));
static_assert(equal(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, CublasLtConfigAttribute::cluster_shape));

}  // namespace
}  // namespace dp::test
