// State of the simulated cuBLASLt. One lock protects it; the thread sanitizer does not see this lock.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "simulated_cuda/cublaslt/simulated_cublaslt.h"
#include "simulated_cuda/foreign_work.h"
#include "simulated_cuda/low_elements.h"

// The opaque handles.
struct dp::kernels::cuda::CublasLtContext {
  int device;
  bool destroyed = false;
};
struct dp::kernels::cuda::CublasLtMatmulDesc {
  CublasCompute compute{};
  CublasOperation transpose_a{}, transpose_b{};
  CublasLtEpilogue epilogue = CublasLtEpilogue::none;
  void* bias = nullptr;
  std::int32_t bias_type = -1;  // -1: the type of d
};
struct dp::kernels::cuda::CublasLtMatrix {
  cudaDataType type;
  std::int64_t rows, cols, pitch;

  std::size_t elements() const { return static_cast<std::size_t>(pitch * (cols - 1) + rows); }
  std::size_t place(std::int64_t row, std::int64_t col) const { return static_cast<std::size_t>(col * pitch + row); }
};
struct dp::kernels::cuda::CublasLtPreference {
  std::uint64_t most_workspace = 0;
  std::uint32_t reduction_mask = 7;
  std::uint32_t alignment[4] = {256, 256, 256, 256};
};

namespace dp::simt {

using namespace kernels::cuda;  // NOLINT: the names of libraries/cublaslt.h

struct CublasLtLaunch {
  CublasLtMatmulDesc desc;
  CublasLtMatrix a, b, d;
  const void *a_data, *b_data;
  void *d_data, *workspace;
  CublasLtAlgorithm algorithm;
};

struct CublasLtState {
  std::mutex mutex;
  std::vector<CublasLtAlgorithm> algorithms;
  bool refuses_devices = false, refuses_bias_gradients = false;
  std::set<const void*> objects;
  std::vector<std::unique_ptr<CublasLtContext>> handles;
  std::vector<std::unique_ptr<CublasLtLaunch>> launches;
  std::vector<std::string> runs;
};
CublasLtState& cublaslt_state();

ElementType element_of(std::int32_t type);  // of a cudaDataType
std::size_t bytes_of(std::int32_t type);
std::size_t workspace_of(CublasLtAlgorithm algorithm);
bool reads_bias(CublasLtEpilogue epilogue);
// Shape of op(a) op(b): rows, columns, and the reduced dimension of a and of b.
struct CublasLtShape {
  std::int64_t m, n, k, k_of_b;
};
CublasLtShape shape_of(const CublasLtMatmulDesc& desc, const CublasLtMatrix& a, const CublasLtMatrix& b);

// Multiplies, on the stream's thread.
void run_cublaslt(const ForeignWork& work, int device, std::uint32_t operation);

}  // namespace dp::simt
