// Linear layers with cuBLASLt.
#pragma once

#include <memory>
#include <vector>

#include "dp/shape.h"
#include "kernels/device/cuda/libraries/cublaslt.h"
#include "kernels/tuning/candidates.h"

namespace dp::kernels::cuda {

// A product of column-major matrices for cuBLASLt. Row-major tensors are their transposes.

struct CublasLtOperand {
  DType type = DType::f32;
  std::int64_t rows = 0, cols = 0;  // as stored, column-major, without gaps
  std::int64_t alignment = 16;      // of the first element, in bytes
};

// d = op(a) op(b), followed by the epilogue.
struct CublasLtProduct {
  CublasLtOperand a, b, d;
  bool transpose_a = false, transpose_b = false;
  CublasLtEpilogue epilogue = CublasLtEpilogue::none;
  DType bias_type = DType::f32;
  bool tf32 = false;
};

// A product ready to run. Not thread-safe.
class CublasLtMatmul {
 public:
  CublasLtMatmul(const CublasLtApi& api, const CublasLtProduct& product);

  // At most `most` algorithms, the fastest first by cuBLASLt's estimate. Empty if it does not support the product.
  std::vector<CublasLtHeuristic> advised(CublasLtHandle handle, std::size_t workspace_bytes, bool deterministic,
                                         std::size_t most) const;
  // The epilogue reads or writes `bias`.
  CublasStatus run(CublasLtHandle handle, const CublasLtAlgo& algo, const void* a, const void* b, void* d, void* bias,
                   void* workspace, std::size_t workspace_bytes, cudaStream_t stream);

 private:
  template <typename T>
  using Handle = std::unique_ptr<T, CublasStatus (*)(T*)>;
  Handle<CublasLtMatrix> matrix(const CublasLtOperand& operand) const;
  template <typename T>
  void set(CublasLtMatmulAttribute name, const T& value);
  bool has_bias() const {
    return product_.epilogue != CublasLtEpilogue::none && product_.epilogue != CublasLtEpilogue::relu;
  }

  const CublasLtApi& api_;
  const CublasLtProduct product_;
  bool known_ = true;  // cuBLASLt accepted the whole description
  Handle<CublasLtMatmulDesc> desc_;
  Handle<CublasLtMatrix> a_, b_, d_;
};

// "66 tile18 stages35 ..": the algorithm and its configuration. The same in every run with the same cuBLASLt.
std::string name_of_algorithm(const CublasLtApi& api, const CublasLtAlgo& algo);

// Candidates "cublaslt:66 tile18 stages35 ..", in the order of the heuristics: at most kMaxCublasLtCandidates per
// descriptor, one with options.deterministic. Empty if cuBLASLt is missing or does not support the product. Also empty
// if x and the weights order the features differently.
inline constexpr std::size_t kMaxCublasLtCandidates = 6;
std::vector<Candidate> cublaslt_candidates(const OpDesc& desc, const CudaOpOptions& options);

}  // namespace dp::kernels::cuda
