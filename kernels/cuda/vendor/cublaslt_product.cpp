#include "kernels/cuda/vendor/cublaslt_product.h"

namespace dp::kernels::cuda {
namespace {

cudaDataType type_of(DType type) {
  return type == DType::bf16 ? CUDA_R_16BF : type == DType::f16 ? CUDA_R_16F : CUDA_R_32F;
}

template <typename T, typename Make>
T* made(bool& known, const Make& make) {
  T* handle = nullptr;
  if (make(&handle) == CublasStatus::success) return handle;
  known = false;
  return nullptr;
}

}  // namespace

CublasLtMatmul::CublasLtMatmul(const CublasLtApi& api, const CublasLtProduct& product)
    : api_(api),
      product_(product),
      desc_(nullptr, api.matmul_destroy),
      a_(matrix(product.a)),
      b_(matrix(product.b)),
      d_(matrix(product.d)) {
  desc_.reset(made<CublasLtMatmulDesc>(known_, [&](CublasLtMatmulDesc** desc) {
    return api.matmul_create(desc, product.tf32 ? CublasCompute::tf32 : CublasCompute::f32, CUDA_R_32F);
  }));
  known_ = known_ && a_ != nullptr && b_ != nullptr && d_ != nullptr;
  if (!known_) return;
  const auto operation = [](bool transpose) { return transpose ? CublasOperation::transpose : CublasOperation::none; };
  set(CublasLtMatmulAttribute::transpose_a, operation(product.transpose_a));
  set(CublasLtMatmulAttribute::transpose_b, operation(product.transpose_b));
  set(CublasLtMatmulAttribute::epilogue, product.epilogue);
  if (!has_bias()) return;
  if (product.bias_type != product.d.type)
    set(CublasLtMatmulAttribute::bias_type, static_cast<std::int32_t>(type_of(product.bias_type)));
  // A placeholder: the heuristics read the pointer's alignment but do not dereference it.
  set(CublasLtMatmulAttribute::bias_pointer, reinterpret_cast<void*>(std::uintptr_t{16}));
}

CublasLtMatmul::Handle<CublasLtMatrix> CublasLtMatmul::matrix(const CublasLtOperand& operand) const {
  CublasLtMatrix* handle = nullptr;
  const CublasStatus status =
      api_.matrix_create(&handle, type_of(operand.type), static_cast<std::uint64_t>(operand.rows),
                         static_cast<std::uint64_t>(operand.cols), operand.rows);
  return {status == CublasStatus::success ? handle : nullptr, api_.matrix_destroy};
}

template <typename T>
void CublasLtMatmul::set(CublasLtMatmulAttribute name, const T& value) {
  if (api_.matmul_set(desc_.get(), name, &value, sizeof value) != CublasStatus::success) known_ = false;
}

std::vector<CublasLtHeuristic> CublasLtMatmul::advised(CublasLtHandle handle, std::size_t workspace_bytes,
                                                       bool deterministic, std::size_t most) const {
  bool known = known_;
  const Handle<CublasLtPreference> preference(made<CublasLtPreference>(known, api_.preference_create),
                                              api_.preference_destroy);
  if (!known) return {};
  const auto want = [&](CublasLtPreferenceAttribute name, const auto& value) {
    if (api_.preference_set(preference.get(), name, &value, sizeof value) != CublasStatus::success) known = false;
  };
  const auto alignment = [](const CublasLtOperand& operand) { return static_cast<std::uint32_t>(operand.alignment); };
  want(CublasLtPreferenceAttribute::most_workspace, static_cast<std::uint64_t>(workspace_bytes));
  want(CublasLtPreferenceAttribute::alignment_a, alignment(product_.a));
  want(CublasLtPreferenceAttribute::alignment_b, alignment(product_.b));
  want(CublasLtPreferenceAttribute::alignment_c, alignment(product_.d));
  want(CublasLtPreferenceAttribute::alignment_d, alignment(product_.d));
  // Split sums are added in an order that is not guaranteed.
  if (deterministic) want(CublasLtPreferenceAttribute::reduction_mask, CublasLtReduction::none);
  std::vector<CublasLtHeuristic> results(most);
  int count = 0;
  if (!known || api_.get_heuristic(handle, desc_.get(), a_.get(), b_.get(), d_.get(), d_.get(), preference.get(),
                                   static_cast<int>(most), results.data(), &count) != CublasStatus::success)
    return {};
  results.resize(static_cast<std::size_t>(count));
  std::erase_if(results, [](const CublasLtHeuristic& result) { return result.state != CublasStatus::success; });
  return results;
}

CublasStatus CublasLtMatmul::run(CublasLtHandle handle, const CublasLtAlgo& algo, const void* a, const void* b, void* d,
                                 void* bias, void* workspace, std::size_t workspace_bytes, cudaStream_t stream) {
  constexpr float kOne = 1, kZero = 0;
  if (has_bias())
    if (const CublasStatus status =
            api_.matmul_set(desc_.get(), CublasLtMatmulAttribute::bias_pointer, &bias, sizeof bias);
        status != CublasStatus::success)
      return status;
  return api_.matmul(handle, desc_.get(), &kOne, a, a_.get(), b, b_.get(), &kZero, d, d_.get(), d, d_.get(), &algo,
                     workspace, workspace_bytes, stream);
}

std::string name_of_algorithm(const CublasLtApi& api, const CublasLtAlgo& algo) {
  std::string name;
  const auto add = [&](const char* what, CublasLtConfigAttribute attribute, auto value) {
    std::size_t written = 0;
    if (api.get_config(&algo, attribute, &value, sizeof value, &written) == CublasStatus::success)
      name += what + std::to_string(value);
  };
  add("", CublasLtConfigAttribute::id, std::int32_t{});
  add(" tile", CublasLtConfigAttribute::tile, std::uint32_t{});
  add(" stages", CublasLtConfigAttribute::stages, std::uint32_t{});
  add(" splits", CublasLtConfigAttribute::splits, std::int32_t{});
  add(" reduction", CublasLtConfigAttribute::reduction, std::uint32_t{});
  add(" swizzle", CublasLtConfigAttribute::swizzling, std::uint32_t{});
  add(" option", CublasLtConfigAttribute::custom_option, std::uint32_t{});
  add(" inner", CublasLtConfigAttribute::inner_shape, std::uint16_t{});
  add(" cluster", CublasLtConfigAttribute::cluster_shape, std::uint16_t{});
  return name;
}

}  // namespace dp::kernels::cuda
