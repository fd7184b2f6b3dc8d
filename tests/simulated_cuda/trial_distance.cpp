// Host version of kernels/tuning/native/trial_distance.cu, which needs Thrust and nvcc: plain loops.
#include "kernels/tuning/trial.h"

#include <algorithm>
#include <cstddef>

#include "kernels/device/cuda/runtime.h"
#include "kernels/low_float.h"

namespace dp::kernels::cuda {
namespace {

std::vector<std::byte> copied(cudaStream_t stream, const void* from, std::size_t bytes) {
  std::vector<std::byte> to(bytes);
  check(cudaMemcpyAsync(to.data(), from, bytes, cudaMemcpyDeviceToHost, stream), "comparing results of a trial");
  check(cudaStreamSynchronize(stream), "comparing results of a trial");
  return to;
}

template <typename T>
double element(const std::vector<std::byte>& bytes, std::size_t i) {
  const T value = reinterpret_cast<const T*>(bytes.data())[i];
  if constexpr (std::is_same_v<T, double>)
    return value;
  else
    return to_float(value);
}

template <typename T>
std::vector<Distance> compared(const std::vector<std::byte>& a, const std::vector<std::byte>& b, std::size_t count) {
  const std::size_t part = distance_part(count);
  std::vector<Distance> sums;
  for (std::size_t begin = 0; begin < count; begin += part) {
    Distance& sum = sums.emplace_back();
    for (std::size_t i = begin; i < std::min(begin + part, count); ++i) {
      const double left = element<T>(a, i), right = element<T>(b, i);
      sum.apart += (left - right) * (left - right);
      sum.norm += right * right;
      sum.numbers += left == left;
    }
  }
  return sums;
}

}  // namespace

std::vector<Distance> distances(cudaStream_t stream, const void* a, const void* b, DType type, std::size_t count) {
  const std::size_t bytes = count * size_of(type);
  const std::vector<std::byte> left = copied(stream, a, bytes), right = copied(stream, b, bytes);
  if (type == DType::f64) return compared<double>(left, right, count);
  if (type == DType::bf16) return compared<BFloat16>(left, right, count);
  if (type == DType::f16) return compared<Float16>(left, right, count);
  return compared<float>(left, right, count);
}

}  // namespace dp::kernels::cuda
