#include "kernels/device/cuda/libraries/cublaslt.h"

#include <optional>
#include <utility>

#include "kernels/device/cuda/libraries/library_file.h"

namespace dp::kernels::cuda {
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

}  // namespace dp::kernels::cuda
