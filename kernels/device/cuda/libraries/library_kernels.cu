#include "kernels/device/cuda/libraries/library_kernels.h"

#include <algorithm>

#include "dp/error.h"
#include "kernels/conv/cuda_gemm_conv.h"
#include "kernels/device/cuda/cuda_op.h"
#include "kernels/low_float.h"

namespace dp::kernels::cuda {
namespace {

constexpr int kThreads = 256, kMostBlocks = 1024;

template <typename From, typename To>
__global__ void __launch_bounds__(kThreads) cast_kernel(const From* from, To* to, long long count) {
  const long long step = static_cast<long long>(gridDim.x) * kThreads;
  for (long long i = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += step)
    to[i] = from_float<To>(to_float(from[i]));
}

template <typename From, typename To>
void cast(cudaStream_t stream, const void* from, void* to, std::int64_t count) {
  const unsigned blocks = std::min<unsigned>(blocks_for(count, kThreads), kMostBlocks);
  launch({"cast", dim3(blocks), dim3(kThreads), stream}, cast_kernel<From, To>, static_cast<const From*>(from),
         static_cast<To*>(to), static_cast<long long>(count));
}

Geometry geometry_of_gradient(const TensorDesc& dy) {
  if (dy.shape.rank() == 4) return dense_geometry(dy);
  return linear_geometry({{dy.shape[0], 1}, dy.type, {}}, {{dy.shape[1], 1}, dy.type, {}});
}

}  // namespace

void enqueue_cast(cudaStream_t stream, const void* from, DType from_type, void* to, DType to_type, std::int64_t count) {
  if (count == 0) return;
  if (from_type == DType::f32 && to_type == DType::bf16) return cast<float, BFloat16>(stream, from, to, count);
  if (from_type == DType::f32 && to_type == DType::f16) return cast<float, Float16>(stream, from, to, count);
  if (from_type == DType::bf16 && to_type == DType::f32) return cast<BFloat16, float>(stream, from, to, count);
  if (from_type == DType::f16 && to_type == DType::f32) return cast<Float16, float>(stream, from, to, count);
  throw Error(ErrorCode::usage, std::string("cannot cast a tensor of a library op from ") + to_string(from_type) +
                                    " to " + to_string(to_type) + "; one of the types must be float32");
}

struct BiasSums::Kernels {
  BiasGradient gradient;
};
BiasSums::BiasSums(const TensorDesc& dy)
    : kernels_(std::make_unique<const Kernels>(Kernels{BiasGradient(dy.type, geometry_of_gradient(dy))})) {}
BiasSums::~BiasSums() = default;
BiasSums::BiasSums(BiasSums&&) noexcept = default;
BiasSums& BiasSums::operator=(BiasSums&&) noexcept = default;

std::size_t BiasSums::workspace_bytes() const { return kernels_->gradient.workspace_bytes(); }
void BiasSums::enqueue(cudaStream_t stream, const void* dy, void* db, void* workspace) const {
  kernels_->gradient.enqueue(stream, dy, static_cast<float*>(db), static_cast<float*>(workspace));
}

}  // namespace dp::kernels::cuda
