#include <cstring>

#include "device_code.h"
#include "kernels/device/cuda/stream.h"

namespace dp::kernels::cuda {
namespace {

constexpr int kMost = 256;
struct Bytes {
  unsigned char of[kMost];
};

__global__ void __launch_bounds__(kMost) upload_kernel(Bytes content, unsigned char* dst, int bytes) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < bytes) dst[i] = content.of[i];
}

}  // namespace

void upload_bytes(void* dst, const void* src, std::size_t bytes, cudaStream_t stream) {
  if (bytes > kMost) throw Error(ErrorCode::usage, "an upload takes at most 256 bytes, not " + std::to_string(bytes));
  Bytes content{};
  std::memcpy(content.of, src, bytes);
  launch({"upload", dim3(1), dim3(kMost), stream}, upload_kernel, content, static_cast<unsigned char*>(dst),
         static_cast<int>(bytes));
}

}  // namespace dp::kernels::cuda
