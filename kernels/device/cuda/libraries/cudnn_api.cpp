#include "kernels/device/cuda/libraries/cudnn_api.h"

#include <optional>
#include <utility>

#include "kernels/device/cuda/libraries/library_file.h"

namespace dp::kernels::cuda {
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

}  // namespace dp::kernels::cuda
