// AddForward.
#include <memory>

#include "kernels/cpu/cpu_layout.h"
#include "kernels/cpu/cpu_op.h"
#include "kernels/cpu/parallel.h"
#include "kernels/op_args.h"

namespace dp::kernels {
namespace {

// Runs over the whole buffer in any layout, padding included: the padding stays zero.
class AddOp : public HostOp {
 public:
  AddOp(const AddForward& d, const CpuOpOptions& options) : relu_(d.relu) {
    tensors_ = {resolved_plain(d.x)};
    count_ = static_cast<std::int64_t>(tensors_[0].layout.bytes / sizeof(float));
    threads_ = threads_for(options.threads, count_ * 12);
  }
  std::string implementation() const override { return "own:simd"; }

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<AddForward>(pointers);
    const float *a = static_cast<const float*>(args.a), *b = static_cast<const float*>(args.b);
    float* y = static_cast<float*>(args.y);
    parallel_ranges(threads_, count_, 16, [=, relu = relu_](std::int64_t begin, std::int64_t end) {
      if (relu) {
#pragma omp simd
        for (std::int64_t i = begin; i < end; ++i) {
          const float sum = a[i] + b[i];
          y[i] = sum < 0 ? 0.f : sum;  // NaN stays NaN
        }
      } else {
#pragma omp simd
        for (std::int64_t i = begin; i < end; ++i) y[i] = a[i] + b[i];
      }
    });
  }

 private:
  bool relu_;
  std::int64_t count_ = 0;
  int threads_ = 1;
};

}  // namespace

std::unique_ptr<HostOp> make(const AddForward& d, const CpuOpOptions& options) {
  return std::make_unique<AddOp>(d, options);
}

}  // namespace dp::kernels
