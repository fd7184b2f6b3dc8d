// Fill and Accumulate.
#include <cstring>
#include <memory>

#include "kernels/cpu/cpu_op.h"
#include "kernels/cpu/parallel.h"
#include "kernels/op_args.h"

namespace dp::kernels {
namespace {

class FillOp : public HostOp {
 public:
  FillOp(const Fill& d, const CpuOpOptions& options)
      : bytes_(static_cast<std::int64_t>(d.bytes)), threads_(threads_for(options.threads, bytes_)) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<Fill>(pointers);
    char* dst = static_cast<char*>(args.dst);
    parallel_ranges(threads_, bytes_, 4096, [=](std::int64_t begin, std::int64_t end) {
      std::memset(dst + begin, 0, static_cast<std::size_t>(end - begin));
    });
  }

 private:
  std::int64_t bytes_;
  int threads_;
};

class AccumulateOp : public HostOp {
 public:
  AccumulateOp(const Accumulate& d, const CpuOpOptions& options)
      : count_(d.count), threads_(threads_for(options.threads, d.count * 8)) {}
  std::string implementation() const override { return "own:simd"; }

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<Accumulate>(pointers);
    const float* x = static_cast<const float*>(args.x);
    float* y = static_cast<float*>(args.y);
    parallel_ranges(threads_, count_, 16, [=](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) y[i] += x[i];
    });
  }

 private:
  std::int64_t count_;
  int threads_;
};

}  // namespace

std::unique_ptr<HostOp> make(const Fill& d, const CpuOpOptions& options) {
  return std::make_unique<FillOp>(d, options);
}
std::unique_ptr<HostOp> make(const Accumulate& d, const CpuOpOptions& options) {
  return std::make_unique<AccumulateOp>(d, options);
}

}  // namespace dp::kernels
