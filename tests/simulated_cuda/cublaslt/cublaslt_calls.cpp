// The cuBLASLt functions that the backend calls.
#include <algorithm>
#include <cstring>

#include "simulated_cuda/cublaslt/cublaslt_state.h"
#include "simulated_cuda/runtime/devices.h"
#include "simulated_cuda/runtime/errors.h"
#include "simulated_cuda/runtime/quiet_lock.h"

namespace dp::simt {
namespace {

CublasStatus wrong(const std::string& what) {
  report("cuBLASLt: " + what);
  return CublasStatus::invalid_value;
}

// The caller holds the lock, as for all functions below.
bool exists(const void* object) {
  if (cublaslt_state().objects.count(object) > 0) return true;
  report("cuBLASLt: a descriptor is used that does not exist");
  return false;
}

std::size_t get_version() { return 130100; }
const char* get_status_string(CublasStatus status) {
  return status == CublasStatus::execution_failed ? "the function failed to launch on the GPU" : "a simulated error";
}

CublasStatus create(CublasLtHandle* handle) {
  CublasLtState& state = cublaslt_state();
  const QuietLock lock(state.mutex);
  if (state.refuses_devices) return CublasStatus::not_initialized;
  state.handles.push_back(std::make_unique<CublasLtContext>(CublasLtContext{current_device()}));
  *handle = state.handles.back().get();
  return CublasStatus::success;
}

CublasStatus destroy(CublasLtHandle handle) {
  const QuietLock lock(cublaslt_state().mutex);
  if (handle->destroyed) return wrong("a handle is destroyed twice");
  must_be_current(handle->device, "cuBLASLt: a handle", "is destroyed");
  handle->destroyed = true;
  return CublasStatus::success;
}

template <typename T>
CublasStatus make_object(T** object, T value) {
  const QuietLock lock(cublaslt_state().mutex);
  *object = new T(std::move(value));
  cublaslt_state().objects.insert(*object);
  return CublasStatus::success;
}
template <typename T>
CublasStatus destroy_object(T* object) {
  const QuietLock lock(cublaslt_state().mutex);
  if (!exists(object)) return CublasStatus::invalid_value;
  cublaslt_state().objects.erase(object);
  delete object;
  return CublasStatus::success;
}
template <typename T>
CublasStatus take(T& place, const void* value, std::size_t bytes) {
  if (value == nullptr || bytes != sizeof place) return wrong("an attribute of another size");
  std::memcpy(&place, value, bytes);
  return CublasStatus::success;
}

CublasStatus matmul_create(CublasLtMatmulDesc** desc, CublasCompute compute, cudaDataType_t scale) {
  if (scale != CUDA_R_32F) return wrong("alpha and beta are float32");
  return make_object(desc, CublasLtMatmulDesc{.compute = compute});
}

CublasStatus matmul_set(CublasLtMatmulDesc* desc, CublasLtMatmulAttribute name, const void* value, std::size_t bytes) {
  const QuietLock lock(cublaslt_state().mutex);
  if (!exists(desc)) return CublasStatus::invalid_value;
  switch (name) {
    case CublasLtMatmulAttribute::transpose_a: return take(desc->transpose_a, value, bytes);
    case CublasLtMatmulAttribute::transpose_b: return take(desc->transpose_b, value, bytes);
    case CublasLtMatmulAttribute::epilogue: return take(desc->epilogue, value, bytes);
    case CublasLtMatmulAttribute::bias_pointer: return take(desc->bias, value, bytes);
    case CublasLtMatmulAttribute::bias_type: return take(desc->bias_type, value, bytes);
  }
  return wrong("a product has no such attribute");
}

CublasStatus matrix_create(CublasLtMatrix** matrix, cudaDataType type, std::uint64_t rows, std::uint64_t cols,
                           std::int64_t pitch) {
  const auto height = static_cast<std::int64_t>(rows), width = static_cast<std::int64_t>(cols);
  if (height < 1 || width < 1 || pitch < height) return wrong("a matrix of nothing, or whose columns overlap");
  return make_object(matrix, CublasLtMatrix{type, height, width, pitch});
}

CublasStatus preference_create(CublasLtPreference** preference) {
  return make_object(preference, CublasLtPreference{});
}

CublasStatus preference_set(CublasLtPreference* preference, CublasLtPreferenceAttribute name, const void* value,
                            std::size_t bytes) {
  const QuietLock lock(cublaslt_state().mutex);
  if (!exists(preference)) return CublasStatus::invalid_value;
  using Name = CublasLtPreferenceAttribute;
  if (name == Name::most_workspace) return take(preference->most_workspace, value, bytes);
  if (name == Name::reduction_mask) return take(preference->reduction_mask, value, bytes);
  if (name < Name::alignment_a || name > Name::alignment_d) return wrong("a preference has no such attribute");
  return take(preference->alignment[static_cast<int>(name) - static_cast<int>(Name::alignment_a)], value, bytes);
}

// Whether the combination is in the table of supported types in cuBLAS's documentation.
bool is_supported(const CublasLtMatmulDesc& desc, const CublasLtMatrix& a, const CublasLtMatrix& b,
                  const CublasLtMatrix& d) {
  if (a.type != b.type || (d.type != a.type && d.type != CUDA_R_32F)) return false;
  if (desc.compute == CublasCompute::tf32 && a.type != CUDA_R_32F) return false;
  if (desc.epilogue == CublasLtEpilogue::bias_gradient_b && cublaslt_state().refuses_bias_gradients) return false;
  return desc.bias_type < 0 || desc.bias_type == d.type;
}

CublasStatus check(const CublasLtMatmulDesc* desc, const CublasLtMatrix* a, const CublasLtMatrix* b,
                   const CublasLtMatrix* c, const CublasLtMatrix* d) {
  for (const void* const object :
       {static_cast<const void*>(desc), static_cast<const void*>(a), static_cast<const void*>(b),
        static_cast<const void*>(c), static_cast<const void*>(d)})
    if (!exists(object)) return CublasStatus::invalid_value;
  const auto [m, n, k, k_of_b] = shape_of(*desc, *a, *b);
  if (k != k_of_b || d->rows != m || d->cols != n) return wrong("a product of matrices that do not fit");
  if (c->rows != d->rows || c->cols != d->cols || c->type != d->type) return wrong("a sum of matrices that do not fit");
  if ((reads_bias(desc->epilogue) || desc->epilogue == CublasLtEpilogue::bias_gradient_b) && desc->bias == nullptr)
    return wrong("an epilogue without its bias");
  return CublasStatus::success;
}

CublasStatus get_heuristic(CublasLtHandle handle, CublasLtMatmulDesc* desc, CublasLtMatrix* a, CublasLtMatrix* b,
                           CublasLtMatrix* c, CublasLtMatrix* d, CublasLtPreference* preference, int asked,
                           CublasLtHeuristic* results, int* count) {
  const QuietLock lock(cublaslt_state().mutex);
  *count = 0;
  if (handle->destroyed || !exists(preference)) return CublasStatus::invalid_value;
  must_be_current(handle->device, "cuBLASLt: a handle", "searches algorithms");
  if (const CublasStatus status = check(desc, a, b, c, d); status != CublasStatus::success) return status;
  if (!is_supported(*desc, *a, *b, *d)) return CublasStatus::not_supported;
  for (const std::uint32_t alignment : preference->alignment)
    if (alignment < 2) return CublasStatus::not_supported;
  for (const CublasLtAlgorithm algorithm : cublaslt_state().algorithms) {
    if (*count == asked || workspace_of(algorithm) > preference->most_workspace) continue;
    if (algorithm == CublasLtAlgorithm::splits && (preference->reduction_mask & 1u) == 0) continue;
    results[(*count)++] = {
        {{static_cast<std::uint64_t>(algorithm)}}, workspace_of(algorithm), CublasStatus::success, 1, {}};
  }
  return CublasStatus::success;
}

CublasStatus get_config(const CublasLtAlgo* algo, CublasLtConfigAttribute name, void* value, std::size_t bytes,
                        std::size_t* written) {
  using Name = CublasLtConfigAttribute;
  const bool is_short = name == Name::inner_shape || name == Name::cluster_shape;
  if (bytes != (is_short ? 2 : 4)) return wrong("an attribute of an algorithm of another size");
  const auto algorithm = static_cast<std::int32_t>(algo->data[0]);
  const bool splits = algorithm == static_cast<std::int32_t>(CublasLtAlgorithm::splits);
  const std::int32_t number = name == Name::id ? algorithm : name == Name::splits ? (splits ? 4 : 1) : 0;
  std::memcpy(value, &number, bytes);
  *written = bytes;
  return CublasStatus::success;
}

bool check_memory(const char* name, const void* pointer, std::size_t bytes, int device) {
  Allocation allocation;
  if (owner_of(pointer) != device || !simt::device(device).memory.find(pointer, allocation)) {
    report(std::string("cuBLASLt: ") + name + " is no memory of " + device_name(device));
    return false;
  }
  if (!allocation.holds(pointer, bytes)) report(std::string("cuBLASLt: ") + name + " is longer than its memory");
  return true;
}

CublasStatus matmul(CublasLtHandle handle, CublasLtMatmulDesc* desc, const void* alpha, const void* a,
                    CublasLtMatrix* a_matrix, const void* b, CublasLtMatrix* b_matrix, const void* beta, const void* c,
                    CublasLtMatrix* c_matrix, void* d, CublasLtMatrix* d_matrix, const CublasLtAlgo* algo,
                    void* workspace, std::size_t workspace_bytes, cudaStream_t stream) {
  CublasLtState& state = cublaslt_state();
  CublasLtLaunch* launch = nullptr;
  {
    const QuietLock lock(state.mutex);
    if (handle->destroyed || device_of(stream) != handle->device)
      return wrong("a product with a handle that is gone, or of another device than the stream's");
    must_be_current(handle->device, "cuBLASLt: a handle", "multiplies");
    if (const CublasStatus status = check(desc, a_matrix, b_matrix, c_matrix, d_matrix);
        status != CublasStatus::success)
      return status;
    if (!is_supported(*desc, *a_matrix, *b_matrix, *d_matrix)) return CublasStatus::not_supported;
    if (*static_cast<const float*>(alpha) != 1 || *static_cast<const float*>(beta) != 0 || c != d)
      return wrong("a product that is scaled, or added to another");
    const auto algorithm = static_cast<CublasLtAlgorithm>(algo->data[0]);
    if (algorithm == CublasLtAlgorithm::fails) return CublasStatus::execution_failed;
    if (workspace_bytes < workspace_of(algorithm)) return wrong("a workspace smaller than the algorithm's");
    const auto bytes = [](const CublasLtMatrix& matrix) { return matrix.elements() * bytes_of(matrix.type); };
    bool right = check_memory("a", a, bytes(*a_matrix), handle->device) &&
                 check_memory("b", b, bytes(*b_matrix), handle->device) &&
                 check_memory("d", d, bytes(*d_matrix), handle->device);
    if (workspace_of(algorithm) > 0) {
      right = right && check_memory("the workspace", workspace, workspace_bytes, handle->device);
      if (reinterpret_cast<std::uintptr_t>(workspace) % 256 != 0) return wrong("a workspace that is not aligned");
    }
    const bool gradient = desc->epilogue == CublasLtEpilogue::bias_gradient_b;
    const auto length = static_cast<std::size_t>(gradient ? d_matrix->cols : d_matrix->rows);
    if (gradient || reads_bias(desc->epilogue))
      right = right &&
              check_memory("the bias", desc->bias,
                           length * bytes_of(desc->bias_type < 0 ? d_matrix->type : desc->bias_type), handle->device);
    if (!right) return CublasStatus::invalid_value;
    state.launches.push_back(std::make_unique<CublasLtLaunch>(
        CublasLtLaunch{*desc, *a_matrix, *b_matrix, *d_matrix, a, b, d, workspace, algorithm}));
    launch = state.launches.back().get();
    const auto [m, n, k, same] = shape_of(*desc, *a_matrix, *b_matrix);
    state.runs.push_back("algorithm " + std::to_string(static_cast<int>(algorithm)) + ", " + std::to_string(m) + "x" +
                         std::to_string(n) + "x" + std::to_string(k) + ", epilogue " +
                         std::to_string(static_cast<int>(desc->epilogue)));
  }
  return enqueue(stream, ForeignWork{"cuBLASLt", run_cublaslt, launch}) == cudaSuccess ? CublasStatus::success
                                                                                       : CublasStatus::execution_failed;
}

constexpr CublasLtApi kApi{get_version,
                           get_status_string,
                           create,
                           destroy,
                           matmul_create,
                           destroy_object<CublasLtMatmulDesc>,
                           matmul_set,
                           matrix_create,
                           destroy_object<CublasLtMatrix>,
                           preference_create,
                           destroy_object<CublasLtPreference>,
                           preference_set,
                           get_heuristic,
                           get_config,
                           matmul};

}  // namespace

CublasLtState& cublaslt_state() {
  static auto& state = *new CublasLtState;
  return state;
}

ElementType element_of(std::int32_t type) {
  return type == CUDA_R_32F ? ElementType::f32 : type == CUDA_R_16BF ? ElementType::bf16 : ElementType::f16;
}
std::size_t bytes_of(std::int32_t type) { return type == CUDA_R_32F ? 4 : 2; }
std::size_t workspace_of(CublasLtAlgorithm algorithm) {
  return algorithm == CublasLtAlgorithm::needs_workspace || algorithm == CublasLtAlgorithm::splits ? 1236 : 0;
}
bool reads_bias(CublasLtEpilogue epilogue) {
  return epilogue == CublasLtEpilogue::bias || epilogue == CublasLtEpilogue::relu_bias;
}

CublasLtShape shape_of(const CublasLtMatmulDesc& desc, const CublasLtMatrix& a, const CublasLtMatrix& b) {
  const bool ta = desc.transpose_a == CublasOperation::transpose, tb = desc.transpose_b == CublasOperation::transpose;
  return {ta ? a.cols : a.rows, tb ? b.rows : b.cols, ta ? a.rows : a.cols, tb ? b.cols : b.rows};
}

SimulatedCublasLt::SimulatedCublasLt(std::vector<CublasLtAlgorithm> algorithms) {
  cublaslt_state().algorithms = std::move(algorithms);
  provide_cublaslt({&kApi, "a stand-in", {}});
}

SimulatedCublasLt::~SimulatedCublasLt() {
  provide_cublaslt({nullptr, {}, "it is not simulated here"});
  CublasLtState& state = cublaslt_state();
  const QuietLock lock(state.mutex);
  if (!state.objects.empty()) report("cuBLASLt: " + std::to_string(state.objects.size()) + " descriptors are left");
  state.objects.clear(), state.handles.clear(), state.launches.clear(), state.runs.clear();
  state.refuses_devices = state.refuses_bias_gradients = false;
}

void SimulatedCublasLt::refuse_devices() { cublaslt_state().refuses_devices = true; }
void SimulatedCublasLt::refuse_bias_gradients() { cublaslt_state().refuses_bias_gradients = true; }
std::vector<std::string> SimulatedCublasLt::runs() const {
  const QuietLock lock(cublaslt_state().mutex);
  return cublaslt_state().runs;
}
int SimulatedCublasLt::handles() const {
  const QuietLock lock(cublaslt_state().mutex);
  const auto& handles = cublaslt_state().handles;
  return static_cast<int>(
      std::count_if(handles.begin(), handles.end(), [](const auto& handle) { return !handle->destroyed; }));
}
int SimulatedCublasLt::descriptors() const {
  const QuietLock lock(cublaslt_state().mutex);
  return static_cast<int>(cublaslt_state().objects.size());
}

}  // namespace dp::simt
