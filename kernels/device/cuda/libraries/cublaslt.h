// The part of cuBLASLt's C interface that the backend uses, loaded at run time. Neither the header nor the library is
// needed to build or to start. The declarations hold for cuBLASLt 12 and 13.
// tests/simulated_cuda/cublaslt_header_test.cpp compares them with cublasLt.h.
#pragma once

#include <cuda_runtime_api.h>
#include <library_types.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace dp::kernels::cuda {

enum class CublasStatus : int {
  success = 0,
  not_initialized = 1,
  invalid_value = 7,
  execution_failed = 13,
  not_supported = 15
};
enum class CublasCompute : int { f32 = 68, tf32 = 77 };
enum class CublasOperation : std::int32_t { none = 0, transpose = 1 };
enum class CublasLtEpilogue : std::uint32_t {
  none = 1,
  relu = 2,
  bias = 4,
  relu_bias = 6,
  bias_gradient_b = 512  // bias gradient: the sum of operand B over k
};
enum class CublasLtReduction : std::uint32_t { none = 0, all = 7 };

enum class CublasLtMatmulAttribute : int {
  transpose_a = 3,
  transpose_b = 4,
  epilogue = 7,
  bias_pointer = 8,
  bias_type = 26
};
enum class CublasLtPreferenceAttribute : int {
  most_workspace = 1,
  reduction_mask = 3,
  alignment_a = 5,
  alignment_b = 6,
  alignment_c = 7,
  alignment_d = 8
};
enum class CublasLtConfigAttribute : int {
  id = 0,
  tile = 1,
  splits = 2,
  reduction = 3,
  swizzling = 4,
  custom_option = 5,
  stages = 6,
  inner_shape = 7,
  cluster_shape = 8
};

struct CublasLtContext;
using CublasLtHandle = CublasLtContext*;
struct CublasLtMatmulDesc;
struct CublasLtMatrix;
struct CublasLtPreference;
struct CublasLtAlgo {
  std::uint64_t data[8];
};
struct CublasLtHeuristic {
  CublasLtAlgo algo;
  std::size_t workspace_bytes;
  CublasStatus state;
  float waves;
  int reserved[4];
};

struct CublasLtApi {
  std::size_t (*get_version)();
  const char* (*get_status_string)(CublasStatus status);
  CublasStatus (*create)(CublasLtHandle* handle);
  CublasStatus (*destroy)(CublasLtHandle handle);
  CublasStatus (*matmul_create)(CublasLtMatmulDesc** desc, CublasCompute compute, cudaDataType_t scale);
  CublasStatus (*matmul_destroy)(CublasLtMatmulDesc* desc);
  CublasStatus (*matmul_set)(CublasLtMatmulDesc* desc, CublasLtMatmulAttribute name, const void* value,
                             std::size_t bytes);
  CublasStatus (*matrix_create)(CublasLtMatrix** matrix, cudaDataType type, std::uint64_t rows, std::uint64_t cols,
                                std::int64_t column_pitch);
  CublasStatus (*matrix_destroy)(CublasLtMatrix* matrix);
  CublasStatus (*preference_create)(CublasLtPreference** preference);
  CublasStatus (*preference_destroy)(CublasLtPreference* preference);
  CublasStatus (*preference_set)(CublasLtPreference* preference, CublasLtPreferenceAttribute name, const void* value,
                                 std::size_t bytes);
  CublasStatus (*get_heuristic)(CublasLtHandle handle, CublasLtMatmulDesc* desc, CublasLtMatrix* a, CublasLtMatrix* b,
                                CublasLtMatrix* c, CublasLtMatrix* d, CublasLtPreference* preference, int asked,
                                CublasLtHeuristic* results, int* count);
  CublasStatus (*get_config)(const CublasLtAlgo* algo, CublasLtConfigAttribute name, void* value, std::size_t bytes,
                             std::size_t* written);
  // d = alpha * op(a) * op(b) + beta * c; matrices are column-major.
  CublasStatus (*matmul)(CublasLtHandle handle, CublasLtMatmulDesc* desc, const void* alpha, const void* a,
                         CublasLtMatrix* a_matrix, const void* b, CublasLtMatrix* b_matrix, const void* beta,
                         const void* c, CublasLtMatrix* c_matrix, void* d, CublasLtMatrix* d_matrix,
                         const CublasLtAlgo* algo, void* workspace, std::size_t workspace_bytes, cudaStream_t stream);
};

struct CublasLtLibrary {
  const CublasLtApi* api = nullptr;
  std::string file;    // the loaded file
  std::string reason;  // why api is null
};

// The library of this process, loaded at the first call: the file that DP_CUBLASLT_LIBRARY names, otherwise
// libcublasLt.so.13 or .12.
const CublasLtLibrary& cublaslt();
// For tests: replaces the library that cublaslt() returns.
void provide_cublaslt(CublasLtLibrary library);
std::string cublaslt_release(const CublasLtApi& api);  // "13.1.0"

}  // namespace dp::kernels::cuda
