#include "kernels/cuda/trial_kernels.h"

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/block_reduce.h"
#include "kernels/cuda/philox.h"
#include "kernels/low_float.h"

namespace dp::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// Calls use.operator()<T>() with the type that elements of `type` have.
template <typename Use>
void with_type(DType type, const Use& use) {
  if (type == DType::bf16) return use.template operator()<BFloat16>();
  if (type == DType::f16) return use.template operator()<Float16>();
  if (type == DType::f64) return use.template operator()<double>();
  use.template operator()<float>();
}

template <typename T>
__device__ __forceinline__ double widened(T value) {
  if constexpr (std::is_same_v<T, double>)
    return value;
  else
    return to_float(value);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    random_kernel(T* to, unsigned long long count, float middle, unsigned seed) {
  const unsigned long long step = static_cast<unsigned long long>(gridDim.x) * kThreads;
  for (unsigned long long i = static_cast<unsigned long long>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += step) {
    const uint4 place = make_uint4(static_cast<unsigned>(i / 4), static_cast<unsigned>(i / 4 >> 32), 0, 0);
    const std::uint32_t word = word_of(philox_words(place, seed, 0), static_cast<unsigned>(i % 4));
    const float value = static_cast<float>(static_cast<int>(word)) * 0x1p-31f + middle;
    if constexpr (std::is_same_v<T, double>)
      to[i] = value;
    else
      to[i] = from_float<T>(value);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    distance_kernel(const T* a, const T* b, unsigned long long count, unsigned long long part, double* parts) {
  const unsigned long long first = blockIdx.x * part, end = first + part < count ? first + part : count;
  double apart = 0, norm = 0;
  for (unsigned long long i = first + threadIdx.x; i < end; i += kThreads) {
    const double value = widened(b[i]), difference = widened(a[i]) - value;
    apart += difference * difference;
    norm += value * value;
  }
  apart = block_sum<kThreads>(apart);
  __syncthreads();
  norm = block_sum<kThreads>(norm);
  if (threadIdx.x == 0) parts[blockIdx.x] = apart, parts[kDistanceParts + blockIdx.x] = norm;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    numbers_kernel(const T* a, unsigned long long count, unsigned long long part, double* parts) {
  const unsigned long long first = blockIdx.x * part, end = first + part < count ? first + part : count;
  double numbers = 0;
  for (unsigned long long i = first + threadIdx.x; i < end; i += kThreads) numbers += widened(a[i]) == widened(a[i]);
  numbers = block_sum<kThreads>(numbers);
  if (threadIdx.x == 0) parts[blockIdx.x] = numbers;
}

template <typename T>
T* typed(void* pointer) {
  return static_cast<T*>(pointer);
}
template <typename T>
const T* typed(const void* pointer) {
  return static_cast<const T*>(pointer);
}

}  // namespace

void enqueue_random(cudaStream_t stream, void* to, DType type, std::size_t count, float middle, unsigned seed) {
  if (count == 0) return;
  const unsigned blocks = std::min(blocks_for(static_cast<long long>(count), kThreads), 4096u);
  with_type(type, [&]<typename T>() {
    launch({"random", dim3(blocks), dim3(kThreads), stream}, random_kernel<T>, typed<T>(to),
           static_cast<unsigned long long>(count), middle, seed);
  });
}

void enqueue_distance(cudaStream_t stream, const void* a, const void* b, DType type, std::size_t count, double* parts) {
  with_type(type, [&]<typename T>() {
    launch({"distance", dim3(kDistanceParts), dim3(kThreads), stream}, distance_kernel<T>, typed<T>(a), typed<T>(b),
           static_cast<unsigned long long>(count), static_cast<unsigned long long>(distance_part(count)), parts);
  });
}

void enqueue_numbers(cudaStream_t stream, const void* a, DType type, std::size_t count, double* parts) {
  with_type(type, [&]<typename T>() {
    launch({"numbers", dim3(kDistanceParts), dim3(kThreads), stream}, numbers_kernel<T>, typed<T>(a),
           static_cast<unsigned long long>(count), static_cast<unsigned long long>(distance_part(count)), parts);
  });
}

}  // namespace dp::kernels::cuda
