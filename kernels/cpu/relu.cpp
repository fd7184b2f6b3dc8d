// ReluForward and ReluBackward as separate ops, where no other op can fuse them.
#include <memory>

#include "kernels/cpu/bfloat16/element.h"
#include "kernels/cpu/cpu_layout.h"
#include "kernels/cpu/cpu_op.h"
#include "kernels/cpu/lanes.h"
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
    count_ = static_cast<std::int64_t>(tensors_[0].layout.bytes / size_of(x.type));
    threads_ = threads_for(options.threads, static_cast<std::int64_t>(tensors_[0].layout.bytes));
  }
  std::string implementation() const override { return "own:simd"; }

  void execute(std::span<void* const> pointers, void*) override {
    with_element_type(tensors_[0].type, [&]<typename T>() {
      if (backward_) {
        const auto args = args_of<ReluBackward>(pointers);
        backward(static_cast<const T*>(args.dy), static_cast<const T*>(args.y), static_cast<T*>(args.dx));
      } else {
        const auto args = args_of<ReluForward>(pointers);
        forward(static_cast<const T*>(args.x), static_cast<T*>(args.y));
      }
    });
  }

 private:
  template <typename T>
  void forward(const T* x, T* y) const {
    parallel_ranges(threads_, count_, 16, [=](std::int64_t begin, std::int64_t end) {
      for_lanes_of(begin, end, [=](auto lanes, std::int64_t i) {
        using V = decltype(lanes);
        const typename V::Floats value = V::load(x + i);
        V::store(y + i, value < 0.f ? typename V::Floats{} : value);  // NaN stays NaN
      });
    });
  }
  template <typename T>
  void backward(const T* dy, const T* y, T* dx) const {
    parallel_ranges(threads_, count_, 16, [=, scale = scale_](std::int64_t begin, std::int64_t end) {
      for_lanes_of(begin, end, [=](auto lanes, std::int64_t i) {
        using V = decltype(lanes);
        V::store(dx + i, V::load(y + i) > 0.f ? V::load(dy + i) * scale : typename V::Floats{});
      });
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
