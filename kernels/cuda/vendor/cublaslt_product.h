// A product of matrices that lie column by column, as cuBLASLt is asked for it. Row-major tensors are their transposes.
#pragma once

#include <memory>
#include <vector>

#include "dp/shape.h"
#include "kernels/cuda/vendor/cublaslt_api.h"

namespace dp::kernels::cuda {

struct CublasLtOperand {
  DType type = DType::f32;
  std::int64_t rows = 0, cols = 0;  // as it lies; columns lie side by side
  std::int64_t alignment = 16;      // bytes on whose multiples it begins
};

// d = op(a) op(b), and then the epilogue.
struct CublasLtProduct {
  CublasLtOperand a, b, d;
  bool transpose_a = false, transpose_b = false;
  CublasLtEpilogue epilogue = CublasLtEpilogue::none;
  DType bias_type = DType::f32;
  bool tf32 = false;
};

// Ready to run. Used by one thread at a time.
class CublasLtMatmul {
 public:
  CublasLtMatmul(const CublasLtApi& api, const CublasLtProduct& product);

  // In the order in which cuBLASLt expects them to be fast; at most so many. None where it does not have the product.
  std::vector<CublasLtHeuristic> advised(CublasLtHandle handle, std::size_t workspace_bytes, bool deterministic,
                                         std::size_t most) const;
  // `bias`: read or written by the epilogue.
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
  bool known_ = true;  // cuBLASLt took all that it was told
  Handle<CublasLtMatmulDesc> desc_;
  Handle<CublasLtMatrix> a_, b_, d_;
};

// "66 tile18 stages35 ..": of an algorithm and how it is set up; the same in every run with the same cuBLASLt.
std::string name_of_algorithm(const CublasLtApi& api, const CublasLtAlgo& algo);

}  // namespace dp::kernels::cuda
