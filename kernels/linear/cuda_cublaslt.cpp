#include "kernels/linear/cuda_cublaslt.h"

#include <algorithm>

#include "dp/error.h"
#include "kernels/device/cuda/libraries/libraries.h"
#include "kernels/device/cuda/libraries/library_kernels.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/linear/cuda_linear.h"
#include "kernels/op_args.h"

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

namespace {

// One layer in one direction.
struct LinearProblem {
  const char* name = "";
  std::vector<TensorDesc> tensors;
  CublasLtProduct product;
  Position a, b, d;                // operands and result of the product, among the arguments
  bool bias_in_epilogue = false;   // reads the bias, or writes its gradient
  Position bias;                   // or its gradient
  Position gradient;               // for own_bias_gradient: dy
  bool own_bias_gradient = false;  // our kernel computes it
  bool narrow_bias = false;        // the bias is rounded to y's type first
  TensorDesc dy;                   // for own_bias_gradient
  std::size_t places = kMaxCublasLtCandidates;
};

CublasLtOperand operand(const TensorDesc& tensor, bool batched) {
  const std::int64_t count = tensor.shape[0];
  return {tensor.type, tensor.shape.numel() / std::max<std::int64_t>(count, 1), count,
          batched ? sample_alignment(tensor) : kTensorAlignment};
}

// The formulations of a descriptor for cuBLASLt, the most fused one first. Empty for other descriptors.
std::vector<LinearProblem> problems_of(const OpDesc& desc, bool tf32) {
  LinearProblem problem;
  problem.name = name_of(desc);
  CublasLtProduct& product = problem.product;
  const auto on = [&](const LinearTensors& t) {
    product.tf32 = tf32 && t.x.type == DType::f32;
    // x and w must have the same order of features.
    return t.x.shape.rank() != 4 || order_of(t.x).channels_last == order_of(t.w).channels_last;
  };
  if (const auto* const d = std::get_if<LinearForward>(&desc)) {
    const LinearTensors t = resolved_linear(d->x, d->w, d->y);
    if (!on(t)) return {};
    problem.tensors = {t.x, t.w, t.y};
    product.a = operand(t.w, false), product.b = operand(t.x, true), product.d = operand(t.y, true);
    product.transpose_a = true;
    constexpr auto at = positions<LinearForward>();
    problem.a = at.w, problem.b = at.x, problem.d = at.y, problem.bias = at.b;
    problem.bias_in_epilogue = d->bias;
    if (d->relu) product.epilogue = CublasLtEpilogue::relu;
    if (d->bias) product.epilogue = d->relu ? CublasLtEpilogue::relu_bias : CublasLtEpilogue::bias;
    if (!d->bias || t.y.type == DType::f32) return {problem};
    LinearProblem narrow = problem;
    narrow.narrow_bias = true, narrow.product.bias_type = t.y.type;
    return {problem, narrow};
  }
  if (const auto* const d = std::get_if<LinearBackwardData>(&desc)) {
    const LinearTensors t = resolved_linear(d->dx, d->w, d->dy);
    if (!on(t)) return {};
    problem.tensors = {t.y, t.w, t.x};
    product.a = operand(t.w, false), product.b = operand(t.y, true), product.d = operand(t.x, true);
    constexpr auto at = positions<LinearBackwardData>();
    problem.a = at.w, problem.b = at.dy, problem.d = at.dx;
    return {problem};
  }
  if (const auto* const d = std::get_if<LinearBackwardWeights>(&desc)) {
    const LinearTensors t = resolved_linear(d->x, d->dw, d->dy);
    if (!on(t)) return {};
    problem.tensors = {t.x, t.y, t.w};
    product.a = operand(t.x, true), product.b = operand(t.y, true), product.d = operand(t.w, false);
    product.transpose_b = true;
    constexpr auto at = positions<LinearBackwardWeights>();
    problem.a = at.x, problem.b = at.dy, problem.d = at.dw, problem.bias = at.db;
    problem.gradient = at.dy, problem.dy = t.y;
    if (!d->bias) return {problem};
    problem.places = kMaxCublasLtCandidates / 2;
    LinearProblem fused = problem;
    fused.bias_in_epilogue = true, fused.product.epilogue = CublasLtEpilogue::bias_gradient_b;
    problem.own_bias_gradient = true;
    return {fused, problem};
  }
  return {};
}

class CublasLtLinearOp final : public CudaOp {
 public:
  CublasLtLinearOp(const LinearProblem& problem, std::string name, const CublasLtHeuristic& chosen,
                   std::shared_ptr<Libraries> libraries)
      : problem_(problem),
        name_(std::move(name)),
        chosen_(chosen),
        libraries_(std::move(libraries)),
        api_(*cublaslt().api),
        matmul_(api_, problem.product) {
    tensors_ = problem.tensors;
    if (problem_.own_bias_gradient) bias_sums_.emplace(problem_.dy);
    if (problem_.narrow_bias)
      narrow_bytes_ = static_cast<std::size_t>(problem_.product.d.rows) * size_of(problem_.product.bias_type);
  }

  std::size_t workspace_bytes() const override {
    const std::size_t own = bias_sums_ ? bias_sums_->workspace_bytes() : 0;
    return std::max(with_room_to_align(chosen_.workspace_bytes) + with_room_to_align(narrow_bytes_), own);
  }
  std::string implementation() const override { return name_; }
  bool uses_libraries() const override { return true; }
  bool rounds_to_tf32() const override { return problem_.product.tf32; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> args, void* workspace) override {
    const CublasLtProduct& product = problem_.product;
    void* const a = arg_at(args, problem_.a);
    void* const b = arg_at(args, problem_.b);
    void* const d = arg_at(args, problem_.d);
    check_alignment(product.a, a), check_alignment(product.b, b), check_alignment(product.d, d);
    void* const ours = aligned_workspace(workspace);
    void* bias = problem_.bias_in_epilogue ? arg_at(args, problem_.bias) : nullptr;
    if (problem_.narrow_bias) {
      void* const narrow = aligned_workspace(static_cast<std::byte*>(ours) + chosen_.workspace_bytes);
      enqueue_cast(stream, bias, DType::f32, narrow, product.bias_type, product.d.rows);
      bias = narrow;
    }
    const CublasStatus status =
        matmul_.run(libraries_->cublaslt_handle(), chosen_.algo, a, b, d, bias,
                    chosen_.workspace_bytes == 0 ? nullptr : ours, chosen_.workspace_bytes, stream);
    if (status != CublasStatus::success) fail(api_.get_status_string(status));
    if (bias_sums_)
      bias_sums_->enqueue(stream, arg_at(args, problem_.gradient), arg_at(args, problem_.bias), workspace);
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    cudaGetLastError();
    throw Error(ErrorCode::device, std::string("cuBLASLt failed in ") + problem_.name + " (" + name_ + ") on " +
                                       current_device() + ": " + why + "; set DP_CUBLASLT_LIBRARY=none to disable it");
  }
  void check_alignment(const CublasLtOperand& operand, const void* pointer) const {
    if (reinterpret_cast<std::uintptr_t>(pointer) % static_cast<std::uintptr_t>(operand.alignment) != 0)
      fail("a tensor is not aligned to " + std::to_string(operand.alignment) + " bytes");
  }

  const LinearProblem problem_;
  const std::string name_;
  const CublasLtHeuristic chosen_;
  const std::shared_ptr<Libraries> libraries_;
  const CublasLtApi& api_;
  CublasLtMatmul matmul_;
  std::optional<BiasSums> bias_sums_;
  std::size_t narrow_bytes_ = 0;
};

}  // namespace

std::vector<Candidate> cublaslt_candidates(const OpDesc& desc, const CudaOpOptions& options) {
  if (options.libraries == nullptr) return {};
  const std::vector<LinearProblem> problems = problems_of(desc, options.tf32);
  const CublasLtHandle handle = problems.empty() ? nullptr : options.libraries->cublaslt_handle();
  if (handle == nullptr) return {};
  const CublasLtApi& api = *cublaslt().api;
  std::vector<Candidate> candidates;
  for (const LinearProblem& problem : problems) {
    if (problem.narrow_bias && !candidates.empty()) break;  // only if there is no other candidate
    const std::size_t places = options.deterministic ? 1 : problem.places;
    const CublasLtMatmul matmul(api, problem.product);
    for (const CublasLtHeuristic& chosen :
         matmul.advised(handle, kMostLibraryWorkspace, options.deterministic, places)) {
      const std::string name = "cublaslt:" + name_of_algorithm(api, chosen.algo) +
                               (problem.product.tf32 ? " tf32" : "") + (problem.own_bias_gradient ? " own bias" : "") +
                               (problem.narrow_bias ? " narrow bias" : "");
      candidates.push_back({family::cublaslt, name, [=, libraries = options.libraries] {
                              return std::make_unique<CublasLtLinearOp>(problem, name, chosen, libraries);
                            }});
    }
    if (options.deterministic && !candidates.empty()) break;
  }
  return candidates;
}

namespace {
const CandidateSource cublaslt_source(CandidateSource::Kind::library, {family::cublaslt}, cublaslt_candidates);
}  // namespace

}  // namespace dp::kernels::cuda
