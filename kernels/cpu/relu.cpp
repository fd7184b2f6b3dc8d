// ReluForward and ReluBackward as separate ops, where no other op can fuse them.
#include <memory>

#include "kernels/cpu/cpu_layout.h"
#include "kernels/cpu/cpu_op.h"
#include "kernels/cpu/parallel.h"
#include "kernels/op_args.h"

namespace dp::kernels {
namespace {

// Runs over the whole buffer in any layout, padding included: the padding stays zero.
class ReluOp : public HostOp {
 public:
  ReluOp(const TensorDesc& x, bool backward, float scale, const CpuOpOptions& options)
      : backward_(backward), scale_(scale) {
    tensors_ = {resolved_plain(x)};
    count_ = static_cast<std::int64_t>(tensors_[0].layout.bytes / sizeof(float));
    threads_ = threads_for(options.threads, count_ * 4);
  }
  std::string implementation() const override { return "own:simd"; }

  void execute(std::span<void* const> pointers, void*) override {
    if (backward_) {
      const auto args = args_of<ReluBackward>(pointers);
      backward(static_cast<const float*>(args.dy), static_cast<const float*>(args.y), static_cast<float*>(args.dx));
    } else {
      const auto args = args_of<ReluForward>(pointers);
      forward(static_cast<const float*>(args.x), static_cast<float*>(args.y));
    }
  }

 private:
  void forward(const float* x, float* y) const {
    parallel_ranges(threads_, count_, 16, [=](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) y[i] = x[i] < 0 ? 0.f : x[i];  // NaN stays NaN
    });
  }
  void backward(const float* dy, const float* y, float* dx) const {
    parallel_ranges(threads_, count_, 16, [=, scale = scale_](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        const float gradient = dy[i];  // read unconditionally, otherwise the loop is not vectorised
        dx[i] = y[i] > 0 ? gradient * scale : 0.f;
      }
    });
  }

  bool backward_;
  float scale_;
  std::int64_t count_ = 0;
  int threads_ = 1;
};

}  // namespace

std::unique_ptr<HostOp> make(const ReluForward& d, const CpuOpOptions& options) {
  return std::make_unique<ReluOp>(d.x, false, 1, options);
}
std::unique_ptr<HostOp> make(const ReluBackward& d, const CpuOpOptions& options) {
  return std::make_unique<ReluOp>(d.x, true, d.scale, options);
}

}  // namespace dp::kernels
