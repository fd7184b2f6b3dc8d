#include "kernels/cpu/machine_rates.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "dp/tensor.h"

namespace dp::kernels {
namespace {

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

double measured_gflops(int threads) {
  double best = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const double start = seconds();
    float sink = 0;
#pragma omp parallel num_threads(threads) reduction(+ : sink)
    {
      typedef float Wide __attribute__((vector_size(64)));
      Wide acc[10];  // all different, otherwise the compiler computes only one
      for (int i = 0; i < 10; ++i) acc[i] = Wide{} + static_cast<float>(i);
      const Wide a = Wide{} + 1.0001f, b = Wide{} + static_cast<float>(omp_get_thread_num());
      for (int i = 0; i < 1000000; ++i)
#pragma GCC unroll 10
        for (auto& value : acc) value = value * a + b;
      for (auto& value : acc) sink += value[0] + value[7];
    }
    if (sink == 1) std::puts("");  // keeps the compiler from removing the loop
    best = std::max(best, threads * 1e6 * 10 * 16 * 2 / (seconds() - start) * 1e-9);
  }
  return best;
}

double measured_gbytes(int threads) {
  const std::int64_t count = 16 << 20;
  Tensor a(Shape{count}), b(Shape{count});
  float *from = a.data<float>(), *to = b.data<float>();
  double best = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const double start = seconds();
#pragma omp parallel for num_threads(threads)
    for (std::int64_t part = 0; part < threads; ++part)
      std::memcpy(to + count * part / threads, from + count * part / threads,
                  static_cast<std::size_t>(count / threads) * 4);
    best = std::max(best, static_cast<double>(count) * 8 / (seconds() - start) * 1e-9);
  }
  return best;
}

}  // namespace dp::kernels
