#include "kernels/cpu/machine_rates.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <unordered_map>

#include "dp/tensor.h"
#include "kernels/cpu/dnnl_compat.h"
#include "kernels/cpu/dnnl_op.h"

namespace dp::kernels {
namespace {

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// A round does one multiply-add on each of kChains independent vectors of kBytes bytes. There are enough chains to hide
// the latency. All of them and the two factors fit into the registers: AVX-512 has 32, the others have 16.
template <int kBytes, int kChains>
[[gnu::always_inline]] inline float chains(std::int64_t rounds, int seed) {
  typedef float Wide __attribute__((vector_size(kBytes)));
  Wide sums[kChains];  // all different, otherwise the compiler computes only one
  for (int i = 0; i < kChains; ++i) sums[i] = Wide{} + static_cast<float>(i);
  const Wide a = Wide{} + 1.0001f, b = Wide{} + static_cast<float>(seed);
  for (std::int64_t i = 0; i < rounds; ++i)
#pragma GCC unroll 16
    for (auto& sum : sums) sum = sum * a + b;
  float sink = 0;
  for (const auto& sum : sums) sink += sum[0] + sum[kBytes / 8];
  return sink;
}

// A loop for the widest vectors of this processor, and its operations per round.
struct Peak {
  float (*run)(std::int64_t rounds, int seed);
  double operations;
};

#ifdef __x86_64__
[[gnu::target("avx512f")]] float run_avx512(std::int64_t rounds, int seed) { return chains<64, 16>(rounds, seed); }
[[gnu::target("avx2,fma")]] float run_avx2(std::int64_t rounds, int seed) { return chains<32, 12>(rounds, seed); }
#endif
float run_plain(std::int64_t rounds, int seed) { return chains<16, 12>(rounds, seed); }

Peak peak_loop() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f")) return {run_avx512, 16 * 16 * 2};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {run_avx2, 12 * 8 * 2};
#endif
  return {run_plain, 12 * 4 * 2};
}

}  // namespace

double measured_gflops(int threads) {
  constexpr std::int64_t kRounds = 1'000'000;
  const Peak peak = peak_loop();
  double best = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const double start = seconds();
    float sink = 0;
    int running = 0;
#pragma omp parallel num_threads(threads) reduction(+ : sink, running)
    {
      sink += peak.run(kRounds, omp_get_thread_num());
      ++running;
    }
    if (sink == 1) std::puts("");  // keeps the compiler from removing the loop
    best = std::max(best, running * static_cast<double>(kRounds) * peak.operations / (seconds() - start) * 1e-9);
  }
  return best;
}

double measured_bfloat16_gflops(int threads) {
  constexpr std::int64_t kSize = 1024;
  const OmpThreads used(threads);
  const auto any = any_desc({kSize, kSize}, DType::bf16);
  const auto pd = dnnl_compat::linear_forward(dnnl_engine(), any, any, DnnlDesc(), any, dnnl::primitive_attr());
  const dnnl::inner_product_forward product(pd);
  const auto memory = [](const DnnlDesc& md) {
    dnnl::memory made(md, dnnl_engine());
    std::memset(made.get_data_handle(), 0, md.get_size());
    return made;
  };
  dnnl::stream stream(dnnl_engine());
  const std::unordered_map<int, dnnl::memory> args{{DNNL_ARG_SRC, memory(pd.src_desc())},
                                                   {DNNL_ARG_WEIGHTS, memory(pd.weights_desc())},
                                                   {DNNL_ARG_DST, memory(pd.dst_desc())}};
  double best = 0;
  for (int repeat = 0; repeat < 20; ++repeat) {
    const double start = seconds();
    product.execute(stream, args);
    stream.wait();
    best = std::max(best, 2.0 * kSize * kSize * kSize / (seconds() - start) * 1e-9);
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
