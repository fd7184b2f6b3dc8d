#include "kernels/tuning/trial.h"

#include <algorithm>
#include <type_traits>

#include "kernels/device/cuda/philox.h"
#include "kernels/low_float.h"

namespace dp::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// Calls use.operator()<T>() with the C++ type T of `type`.
template <typename Use>
void with_type(DType type, const Use& use) {
  if (type == DType::bf16) return use.template operator()<BFloat16>();
  if (type == DType::f16) return use.template operator()<Float16>();
  if (type == DType::f64) return use.template operator()<double>();
  use.template operator()<float>();
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

}  // namespace

void enqueue_random(cudaStream_t stream, void* to, DType type, std::size_t count, float middle, unsigned seed) {
  if (count == 0) return;
  const unsigned blocks = std::min(blocks_for(static_cast<long long>(count), kThreads), 4096u);
  with_type(type, [&]<typename T>() {
    launch({"random", dim3(blocks), dim3(kThreads), stream}, random_kernel<T>, static_cast<T*>(to),
           static_cast<unsigned long long>(count), middle, seed);
  });
}

}  // namespace dp::kernels::cuda
