// NVIDIA's libraries, loaded at run time: their files, and handles to them for one context. Our own kernels replace a
// missing library.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "kernels/device/cuda/libraries/cublaslt.h"
#include "kernels/device/cuda/libraries/cudnn_api.h"
#include "kernels/layout.h"

namespace dp::kernels::cuda {

// Shared libraries loaded at run time.
class LibraryFile {
 public:
  // Loads the library named by the environment variable (kernels/device/plugin.h) if it is set, otherwise the first of
  // `names` that loads. It is never unloaded.
  LibraryFile(const char* variable, std::initializer_list<const char*> names);

  bool found() const { return library_ != nullptr; }
  const std::string& reason() const { return reason_; }  // why it is not found
  const std::string& file() const { return file_; }      // the loaded file
  const char* missing() const { return missing_; }       // the first missing function; null: none

  template <typename Function>
  void find(const char* name, Function& function) {
    function = reinterpret_cast<Function>(address_of(name));
  }

 private:
  void* address_of(const char* name);

  void* library_ = nullptr;
  std::string file_, reason_;
  const char* missing_ = nullptr;
};

// Belongs to one device. The device must be current when a handle is requested. Not thread-safe: cuDNN handles are for
// one thread at a time. Shared with the ops that use the libraries.
class Libraries {
 public:
  explicit Libraries(int device) : device_(device) {}
  ~Libraries();  // makes the device current: the libraries free memory of it
  Libraries(const Libraries&) = delete;
  Libraries& operator=(const Libraries&) = delete;

  // Null if the library is missing or does not support the device.
  CudnnHandle cudnn_handle();
  CublasLtHandle cublaslt_handle();
  // Later work of the cuDNN handle runs on `stream`. Requires a cuDNN handle.
  CudnnStatus use_stream(cudaStream_t stream);

 private:
  const int device_;
  const CudnnApi* cudnn_ = nullptr;  // the API that created the handle
  const CublasLtApi* cublaslt_ = nullptr;
  CudnnHandle cudnn_handle_ = nullptr;
  CublasLtHandle cublaslt_handle_ = nullptr;
};

// "cudnn 9.19.0; cublaslt none", a part of the tuning cache's key.
std::string library_versions();
// One line per library, as in `dp_train env`: "cuDNN       9.19.0, libcudnn.so.9".
std::string describe_libraries();

// Alignment in bytes: of every tensor, and the alignment that is guaranteed for every sample of `tensor`.
inline constexpr std::int64_t kTensorAlignment = 16;
std::int64_t sample_alignment(const TensorDesc& tensor);

// Candidates of libraries that need a larger workspace are rejected; bytes.
inline constexpr std::size_t kMostLibraryWorkspace = std::size_t{256} << 20;
// The size to reserve for a library's workspace. It leaves room to align its start to kLibraryAlignment bytes.
inline constexpr std::size_t kLibraryAlignment = 256;
constexpr std::size_t with_room_to_align(std::size_t bytes) { return bytes == 0 ? 0 : bytes + kLibraryAlignment; }
inline void* aligned_workspace(void* workspace) {
  const auto address = reinterpret_cast<std::uintptr_t>(workspace);
  return reinterpret_cast<void*>((address + kLibraryAlignment - 1) / kLibraryAlignment * kLibraryAlignment);
}

}  // namespace dp::kernels::cuda
