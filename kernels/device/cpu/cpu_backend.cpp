#include "kernels/device/cpu/cpu_backend.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dnnl.hpp>
#include <unordered_map>

#include "dp/tensor.h"
#include "kernels/device/cpu/cpu_layout.h"
#include "kernels/device/cpu/cpu_op.h"
#include "kernels/device/cpu/dnnl_op.h"
#include "kernels/device/cpu/widened_op.h"
#include "kernels/device/host/host_backend.h"
#include "kernels/device/host/host_context.h"

namespace dp::kernels {
namespace {

bool emulates_bfloat16() {
  const char* const value = std::getenv("DP_EMULATE_BF16");
  return value != nullptr && std::string_view(value) == "1";
}

class CpuContext final : public HostContext {
 public:
  using HostContext::HostContext;

  DType compute_type() const override { return DType::f32; }
  DType activation_type() const override { return options().activations.value_or(DType::f32); }
  std::unique_ptr<Op> make_op(const OpDesc& desc) override {
    return make_cpu_op(desc, {.threads = options().threads,
                              .deterministic = options().deterministic,
                              .fast_convolutions = options().fast_convolutions,
                              .bfloat16 = activation_type() == DType::bf16,
                              .emulate_bfloat16 = emulates_});
  }
  Layout plain_layout(const Shape& shape, DType type) override { return plain_cpu_layout(shape, type); }
  Rates rates() override {
    const int threads = options().threads;
    const bool low = activation_type() == DType::bf16 && !emulates_;
    return {(low ? measured_bfloat16_gflops(threads) : measured_gflops(threads)) * 1e9, measured_gbytes(threads) * 1e9,
            std::string(low ? "a matrix product of oneDNN" : "fused multiply-adds on ten vectors in registers") +
                "; memcpy of 64 MiB, bytes read and written"};
  }
  Layout with_type(const TensorDesc& tensor, DType type) override {
    return make_layout(kernels::with_type(desc_of(tensor.layout), type), type);
  }

 private:
  const bool emulates_ = emulates_bfloat16();
};

void check_activations(DType type) {
  if (type == DType::bf16 && !has_bfloat16() && !emulates_bfloat16())
    throw Error(
        ErrorCode::usage,
        "--amp on CPU replicas requires a processor with bfloat16 instructions (AVX512-BF16 or AMX), which this "
        "one lacks; remove it. DP_EMULATE_BF16=1 computes the same with float32 instructions, slowly");
  if (type != DType::bf16)
    throw Error(ErrorCode::usage,
                std::string("CPU replicas have no ") + to_string(type) + " activations; use --amp-dtype bfloat16");
}

class CpuBackend final : public HostBackend {
 public:
  std::string describe() const override {
    const dnnl_version_t* const version = dnnl_version();
    return "oneDNN      " + std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
           std::to_string(version->patch) + "\n";
  }
  std::unique_ptr<Context> open(Device device, const ContextOptions& options) override {
    if (options.activations) check_activations(*options.activations);
    return std::make_unique<CpuContext>(device, options);
  }
};

}  // namespace

Backend& cpu_backend() {
  static CpuBackend backend;
  return backend;
}

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
