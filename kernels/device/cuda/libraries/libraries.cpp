#include "kernels/device/cuda/libraries/libraries.h"

#include <dlfcn.h>

#include <cstdlib>
#include <numeric>
#include <optional>
#include <utility>

#include "kernels/device/cuda/libraries/cublaslt.h"
#include "kernels/device/cuda/libraries/cudnn_api.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/device/plugin.h"

namespace dp::kernels::cuda {

LibraryFile::LibraryFile(const char* variable, std::initializer_list<const char*> names) {
  const char* const named = std::getenv(variable);
  std::string tried;
  const auto open = [&](const char* file) {
    tried += (tried.empty() ? "" : ", ") + std::string(file);
    library_ = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library_ != nullptr) file_ = file;
  };
  if (named != nullptr && *named != '\0') {
    reason_ = relative_library(variable, named);
    if (reason_.empty()) open(named);
  } else {
    for (const char* const name : names)
      if (library_ == nullptr) open(name);
  }
  if (library_ == nullptr && reason_.empty()) reason_ = tried + " was not found";
}

void* LibraryFile::address_of(const char* name) {
  void* const address = dlsym(library_, name);
  if (address == nullptr && missing_ == nullptr) missing_ = name;
  return address;
}

namespace {

CudnnLibrary load_cudnn() {
  LibraryFile library("DP_CUDNN_LIBRARY", {"libcudnn.so.9"});
  if (!library.found()) return {nullptr, {}, library.reason()};
  static CudnnApi api;
  library.find("cudnnGetVersion", api.get_version);
  library.find("cudnnGetErrorString", api.get_error_string);
  library.find("cudnnGetLastErrorString", api.get_last_error_string);
  library.find("cudnnCreate", api.create);
  library.find("cudnnDestroy", api.destroy);
  library.find("cudnnSetStream", api.set_stream);
  library.find("cudnnBackendCreateDescriptor", api.create_descriptor);
  library.find("cudnnBackendDestroyDescriptor", api.destroy_descriptor);
  library.find("cudnnBackendFinalize", api.finalize);
  library.find("cudnnBackendSetAttribute", api.set_attribute);
  library.find("cudnnBackendGetAttribute", api.get_attribute);
  library.find("cudnnBackendExecute", api.execute);
  if (library.missing() != nullptr)
    return {nullptr, {}, library.file() + " is not cuDNN 9 (it lacks " + library.missing() + ")"};
  if (api.get_version() / 10000 != 9)
    return {nullptr, {}, library.file() + " is cuDNN " + cudnn_release(api) + ", not 9"};
  return {&api, library.file(), {}};
}

std::optional<CudnnLibrary>& provided_cudnn() {
  static std::optional<CudnnLibrary> library;
  return library;
}

}  // namespace

const CudnnLibrary& cudnn() {
  if (provided_cudnn()) return *provided_cudnn();
  static const CudnnLibrary library = load_cudnn();
  return library;
}

void provide_cudnn(CudnnLibrary library) { provided_cudnn() = std::move(library); }

std::string cudnn_release(const CudnnApi& api) {
  const std::size_t version = api.get_version();
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

namespace {

constexpr std::size_t kOldest = 120000;
// The version of the linked CUDA runtime is tried first.
constexpr const char* kFiles[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
constexpr bool kNew = CUDART_VERSION >= 13000;

CublasLtLibrary load_cublaslt() {
  LibraryFile library("DP_CUBLASLT_LIBRARY", {kFiles[kNew ? 0 : 1], kFiles[kNew ? 1 : 0]});
  if (!library.found()) return {nullptr, {}, library.reason()};
  static CublasLtApi api;
  library.find("cublasLtGetVersion", api.get_version);
  library.find("cublasLtGetStatusString", api.get_status_string);
  library.find("cublasLtCreate", api.create);
  library.find("cublasLtDestroy", api.destroy);
  library.find("cublasLtMatmulDescCreate", api.matmul_create);
  library.find("cublasLtMatmulDescDestroy", api.matmul_destroy);
  library.find("cublasLtMatmulDescSetAttribute", api.matmul_set);
  library.find("cublasLtMatrixLayoutCreate", api.matrix_create);
  library.find("cublasLtMatrixLayoutDestroy", api.matrix_destroy);
  library.find("cublasLtMatmulPreferenceCreate", api.preference_create);
  library.find("cublasLtMatmulPreferenceDestroy", api.preference_destroy);
  library.find("cublasLtMatmulPreferenceSetAttribute", api.preference_set);
  library.find("cublasLtMatmulAlgoGetHeuristic", api.get_heuristic);
  library.find("cublasLtMatmulAlgoConfigGetAttribute", api.get_config);
  library.find("cublasLtMatmul", api.matmul);
  if (library.missing() != nullptr)
    return {nullptr, {}, library.file() + " is not a usable cuBLASLt library (it lacks " + library.missing() + ")"};
  if (api.get_version() < kOldest)
    return {nullptr, {}, library.file() + " is cuBLASLt " + cublaslt_release(api) + ", older than 12"};
  return {&api, library.file(), {}};
}

std::optional<CublasLtLibrary>& provided_cublaslt() {
  static std::optional<CublasLtLibrary> library;
  return library;
}

}  // namespace

const CublasLtLibrary& cublaslt() {
  if (provided_cublaslt()) return *provided_cublaslt();
  static const CublasLtLibrary library = load_cublaslt();
  return library;
}

void provide_cublaslt(CublasLtLibrary library) { provided_cublaslt() = std::move(library); }

std::string cublaslt_release(const CublasLtApi& api) {
  const std::size_t version = api.get_version();
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

std::int64_t sample_alignment(const TensorDesc& tensor) {
  const auto sample = tensor.shape.without_first().numel() * static_cast<std::int64_t>(size_of(tensor.type));
  return std::gcd(sample, kTensorAlignment);
}

Libraries::~Libraries() {
  if ((cudnn_handle_ == nullptr && cublaslt_handle_ == nullptr) || handles_abandoned) return;
  if (cudaSetDevice(device_) != cudaSuccess) cudaGetLastError();
  if (cudnn_handle_ != nullptr) cudnn_->destroy(cudnn_handle_);
  if (cublaslt_handle_ != nullptr) cublaslt_->destroy(cublaslt_handle_);
}

CudnnHandle Libraries::cudnn_handle() {
  if (cudnn_ == nullptr) {
    cudnn_ = cudnn().api;
    if (cudnn_ != nullptr && cudnn_->create(&cudnn_handle_) != CudnnStatus::success) cudnn_handle_ = nullptr;
    cudaGetLastError();  // clears errors that the library left behind
  }
  return cudnn_handle_;
}

CublasLtHandle Libraries::cublaslt_handle() {
  if (cublaslt_ == nullptr) {
    cublaslt_ = cublaslt().api;
    if (cublaslt_ != nullptr && cublaslt_->create(&cublaslt_handle_) != CublasStatus::success)
      cublaslt_handle_ = nullptr;
    cudaGetLastError();
  }
  return cublaslt_handle_;
}

CudnnStatus Libraries::use_stream(cudaStream_t stream) { return cudnn_->set_stream(cudnn_handle_, stream); }

std::string library_versions() {
  const CudnnApi* const dnn = cudnn().api;
  const CublasLtApi* const blas = cublaslt().api;
  return "cudnn " + (dnn == nullptr ? "none" : cudnn_release(*dnn)) + "; cublaslt " +
         (blas == nullptr ? "none" : cublaslt_release(*blas));
}

std::string describe_libraries() {
  const CudnnLibrary& dnn = cudnn();
  const CublasLtLibrary& blas = cublaslt();
  return "cuDNN       " + (dnn.api == nullptr ? "none: " + dnn.reason : cudnn_release(*dnn.api) + ", " + dnn.file) +
         "\ncuBLASLt    " +
         (blas.api == nullptr ? "none: " + blas.reason : cublaslt_release(*blas.api) + ", " + blas.file) + "\n";
}

}  // namespace dp::kernels::cuda
