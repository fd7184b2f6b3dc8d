// Element-wise maps over contiguous memory. A thread reads only the elements that it
// writes, and reads them first, so results may overwrite an input.
#pragma once

#include "kernels/device/cuda/pack.h"

namespace dp::kernels::cuda {

inline constexpr int kElementThreads = 256;

// Thread t of the grid takes the elements [t * kWidth, (t + 1) * kWidth).
template <int kWidth>
__device__ __forceinline__ long long first_element() {
  return (static_cast<long long>(blockIdx.x) * kElementThreads + threadIdx.x) * kWidth;
}

// y = map(x)
template <int kWidth, typename T, typename Map>
__device__ __forceinline__ void map_elements(const T* x, T* y, long long count, const Map& map) {
  const long long at = first_element<kWidth>();
  if (at + kWidth <= count) {
    Pack<kWidth> values = load_pack<kWidth>(x + at);
    for (float& value : values.v) value = map(value);
    store_pack(y + at, values);
  } else {
    for (long long i = at; i < count; ++i) y[i] = from_float<T>(map(to_float(x[i])));
  }
}

// y = map(a, b)
template <int kWidth, typename T, typename Map>
__device__ __forceinline__ void map_elements(const T* a, const T* b, T* y, long long count, const Map& map) {
  const long long at = first_element<kWidth>();
  if (at + kWidth <= count) {
    Pack<kWidth> values = load_pack<kWidth>(a + at);
    const Pack<kWidth> others = load_pack<kWidth>(b + at);
    for (int k = 0; k < kWidth; ++k) values.v[k] = map(values.v[k], others.v[k]);
    store_pack(y + at, values);
  } else {
    for (long long i = at; i < count; ++i) y[i] = from_float<T>(map(to_float(a[i]), to_float(b[i])));
  }
}

inline Launch over_elements(const char* kernel, long long count, bool packs, cudaStream_t stream) {
  return {kernel, dim3(blocks_for(count, kElementThreads * (packs ? 4 : 1))), dim3(kElementThreads), stream};
}

}  // namespace dp::kernels::cuda
