// Makes the CPU's ops from their descriptors. Also defines Fill and Accumulate.
#include "kernels/device/cpu/cpu_op.h"

#include <cstring>
#include <dnnl.hpp>
#include <memory>

#include "kernels/check_shapes.h"
#include "kernels/device/cpu/announce.h"
#include "kernels/device/cpu/dnnl_op.h"
#include "kernels/device/cpu/parallel.h"
#include "kernels/device/host/memory.h"
#include "kernels/fused/fused_host_op.h"
#include "kernels/op_args.h"

namespace dp::kernels {
namespace {

template <typename Desc>
std::unique_ptr<HostOp> unfused(const Desc& desc, const CpuOpOptions& options) {
  return std::make_unique<FusedHostOp>(desc, [&](const auto& part) { return make(part, options); });
}

}  // namespace

std::unique_ptr<HostOp> make(const NormConv2dForward& desc, const CpuOpOptions& options) {
  return unfused(desc, options);
}
std::unique_ptr<HostOp> make(const NormConv2dBackwardData& desc, const CpuOpOptions& options) {
  return unfused(desc, options);
}
std::unique_ptr<HostOp> make(const NormConv2dBackwardWeights& desc, const CpuOpOptions& options) {
  return unfused(desc, options);
}
std::unique_ptr<HostOp> make(const LinearDropoutForward& desc, const CpuOpOptions& options) {
  return unfused(desc, options);
}
std::unique_ptr<HostOp> make(const Conv2dPoolForward& desc, const CpuOpOptions& options) {
  return unfused(desc, options);
}
std::unique_ptr<HostOp> make(const Conv2dReluBackwardData& desc, const CpuOpOptions& options) {
  return unfused(desc, options);
}
std::unique_ptr<HostOp> make(const LinearPoolBackwardData& desc, const CpuOpOptions& options) {
  return unfused(desc, options);
}
std::unique_ptr<HostOp> make(const LinearReluBackward& desc, const CpuOpOptions& options) {
  return unfused(desc, options);
}
std::unique_ptr<HostOp> make(const LinearLoss& desc, const CpuOpOptions& options) { return unfused(desc, options); }

// Visits the closed set of descriptors. A descriptor without make() does not compile.
std::unique_ptr<HostOp> make_cpu_op(const OpDesc& desc, const CpuOpOptions& options) {
  check_shapes(desc, options.bfloat16 ? LowPrecision::bfloat16 : LowPrecision::converted);
  CpuOpOptions used = options;
  if (kThreadSanitizer) used.threads = 1;
  require_address_space(0);                // oneDNN 2.6 crashes when an internal allocation fails
  const OmpThreads threads(used.threads);  // oneDNN partitions its work for the current number of threads
  try {
    return std::visit([&](const auto& d) { return make(d, used); }, desc);
  } catch (const dnnl::error& error) {
    throw Error(ErrorCode::usage,
                std::string(name_of(desc)) + " cannot be created for" + shapes_of(desc) + ": oneDNN: " + error.what());
  }
}

// Fill and Accumulate.

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
