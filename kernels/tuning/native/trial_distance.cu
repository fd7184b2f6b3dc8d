// Compiles Thrust's kernels for 64-bit sizes only, to save compile time.
#define THRUST_FORCE_64_BIT_OFFSET_TYPE

#include "kernels/tuning/trial.h"

#include <thrust/execution_policy.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/discard_iterator.h>
#include <thrust/iterator/transform_iterator.h>
#include <thrust/reduce.h>
#include <thrust/system_error.h>

#include <functional>

#include "dp/error.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/low_float.h"

namespace dp::kernels::cuda {
namespace {

// Selects the type at run time. One instance of Thrust's kernels then serves all types; each instance takes long to
// compile.
__device__ double element(const void* values, DType type, std::size_t i) {
  switch (type) {
    case DType::f64: return static_cast<const double*>(values)[i];
    case DType::bf16: return to_float(static_cast<const BFloat16*>(values)[i]);
    case DType::f16: return to_float(static_cast<const Float16*>(values)[i]);
    default: return static_cast<const float*>(values)[i];
  }
}

struct Compare {
  const void *a, *b;
  DType type;
  __device__ Distance operator()(std::size_t i) const {
    const double left = element(a, type, i), right = element(b, type, i), difference = left - right;
    return {difference * difference, right * right, left == left ? 1.0 : 0.0};
  }
};

struct Add {
  __device__ Distance operator()(const Distance& x, const Distance& y) const {
    return {x.apart + y.apart, x.norm + y.norm, x.numbers + y.numbers};
  }
};

struct PartOf {
  std::size_t length;
  __host__ __device__ std::size_t operator()(std::size_t i) const { return i / length; }
};

}  // namespace

std::vector<Distance> distances(cudaStream_t stream, const void* a, const void* b, DType type, std::size_t count) {
  const std::size_t part = distance_part(count);
  std::vector<Distance> sums((count + part - 1) / part);
  const DeviceMemory on_device = device_memory(sums.size() * sizeof(Distance));
  const auto first = thrust::make_counting_iterator<std::size_t>(0);
  try {
    thrust::reduce_by_key(thrust::cuda::par_nosync.on(stream), thrust::make_transform_iterator(first, PartOf{part}),
                          thrust::make_transform_iterator(first + count, PartOf{part}),
                          thrust::make_transform_iterator(first, Compare{a, b, type}), thrust::make_discard_iterator(),
                          static_cast<Distance*>(on_device.get()), std::equal_to<std::size_t>(), Add{});
  } catch (const std::exception& error) {  // an error of Thrust, or out of memory
    throw Error(ErrorCode::device, "comparing results of a trial on " + current_device() + ": " + error.what());
  }
  check(cudaMemcpyAsync(sums.data(), on_device.get(), sums.size() * sizeof(Distance), cudaMemcpyDeviceToHost, stream),
        "comparing results of a trial");
  check(cudaStreamSynchronize(stream), "comparing results of a trial");
  return sums;
}

}  // namespace dp::kernels::cuda
