// NVIDIA's libraries as one context uses them: found at run time, with handles of its own. Where one is missing, own kernels serve.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/cuda/vendor/cublaslt_api.h"
#include "kernels/cuda/vendor/cudnn/cudnn_api.h"
#include "kernels/layout.h"

namespace dp::kernels::cuda {

// Of one device, which is current when a handle is asked for. Used by one thread at a time, as cuDNN demands of its handles;
// shared with the ops that run through them.
class Libraries {
 public:
  explicit Libraries(int device) : device_(device) {}
  ~Libraries();  // makes the device the calling thread's current one: libraries free memory of it
  Libraries(const Libraries&) = delete;
  Libraries& operator=(const Libraries&) = delete;

  // Null where the library is missing or refuses the device.
  CudnnHandle cudnn_handle();
  CublasLtHandle cublaslt_handle();
  // What the handle of cuDNN, which there is, runs from now on is on that stream.
  CudnnStatus use_stream(cudaStream_t stream);

 private:
  const int device_;
  const CudnnApi* cudnn_ = nullptr;  // that a handle was asked of
  const CublasLtApi* cublaslt_ = nullptr;
  CudnnHandle cudnn_handle_ = nullptr;
  CublasLtHandle cublaslt_handle_ = nullptr;
};

// "cudnn 9.19.0; cublaslt none": for what depends on the libraries that are there.
std::string library_versions();
// A line each, as `dp_train env` has them: "cuDNN       9.19.0, libcudnn.so.9".
std::string describe_libraries();

// Bytes on whose multiples every tensor begins; and, as far as is known, every sample of one.
inline constexpr std::int64_t kTensorAlignment = 16;
std::int64_t sample_alignment(const TensorDesc& tensor);

// A way of a library that needs more is not taken.
inline constexpr std::size_t kMostLibraryWorkspace = std::size_t{256} << 20;
// Of a library's workspace: what it wants, so that it can begin on the next multiple of kLibraryAlignment behind where ours begins.
inline constexpr std::size_t kLibraryAlignment = 256;
constexpr std::size_t with_room_to_align(std::size_t bytes) { return bytes == 0 ? 0 : bytes + kLibraryAlignment; }
inline void* aligned_workspace(void* workspace) {
  const auto address = reinterpret_cast<std::uintptr_t>(workspace);
  return reinterpret_cast<void*>((address + kLibraryAlignment - 1) / kLibraryAlignment * kLibraryAlignment);
}

}  // namespace dp::kernels::cuda
