// ReluForward and ReluBackward as separate ops, where no other op can fuse them.
#include <memory>

#include "kernels/cpu/cpu_layout.h"
#include "kernels/cpu/cpu_op.h"
#include "kernels/cpu/parallel.h"

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

  void execute(std::span<void* const> args, void*) override {
    const float* in = static_cast<const float*>(args[0]);
    const float* kept = backward_ ? static_cast<const float*>(args[1]) : nullptr;
    float* out = static_cast<float*>(args[backward_ ? 2 : 1]);
    parallel_ranges(threads_, count_, 16,
                    [=, backward = backward_, scale = scale_](std::int64_t begin, std::int64_t end) {
                      if (backward) {
#pragma omp simd
                        for (std::int64_t i = begin; i < end; ++i) {
                          const float gradient = in[i];  // read unconditionally, otherwise the loop is not vectorised
                          out[i] = kept[i] > 0 ? gradient * scale : 0.f;
                        }
                      } else {
#pragma omp simd
                        for (std::int64_t i = begin; i < end; ++i) out[i] = in[i] < 0 ? 0.f : in[i];  // NaN stays NaN
                      }
                    });
  }

 private:
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
