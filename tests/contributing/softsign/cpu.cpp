#include <cmath>
#include <memory>

#include "kernels/device/cpu/bfloat16.h"
#include "kernels/device/cpu/cpu_layout.h"
#include "kernels/device/cpu/cpu_op.h"
#include "kernels/device/cpu/lanes.h"
#include "kernels/device/cpu/parallel.h"
#include "kernels/op_args.h"

namespace dp::kernels {
namespace {

// Processes the whole buffer in any layout, including the padding, which stays zero.
class SoftsignOp : public HostOp {
 public:
  SoftsignOp(const TensorDesc& x, bool backward, const CpuOpOptions& options) : backward_(backward) {
    tensors_ = {resolved_plain(x)};
    count_ = static_cast<std::int64_t>(tensors_[0].layout.bytes / size_of(x.type));
    threads_ = threads_for(options.threads, static_cast<std::int64_t>(tensors_[0].layout.bytes));
  }
  std::string implementation() const override { return "own"; }

  void execute(std::span<void* const> pointers, void*) override {
    with_element_type(tensors_[0].type, [&]<typename T>() {
      if (backward_) {
        const auto args = args_of<SoftsignBackward>(pointers);
        map<T>(args.x, args.dy, args.dx,
               [](float x, float dy) { return dy / ((1 + std::abs(x)) * (1 + std::abs(x))); });
      } else {
        const auto args = args_of<SoftsignForward>(pointers);
        map<T>(args.x, args.x, args.y, [](float x, float) { return x / (1 + std::abs(x)); });
      }
    });
  }

 private:
  template <typename T, typename Map>
  void map(const void* a, const void* b, void* to, Map of) const {
    parallel_ranges(threads_, count_, 16, [=](std::int64_t begin, std::int64_t end) {
      using One = Lanes<1>;
      for (std::int64_t i = begin; i < end; ++i) {
        const float first = One::load(static_cast<const T*>(a) + i)[0],
                    second = One::load(static_cast<const T*>(b) + i)[0];
        One::store(static_cast<T*>(to) + i, typename One::Floats{of(first, second)});
      }
    });
  }

  bool backward_;
  std::int64_t count_ = 0;
  int threads_ = 1;
};

}  // namespace

std::unique_ptr<HostOp> make(const SoftsignForward& d, const CpuOpOptions& options) {
  return std::make_unique<SoftsignOp>(d.x, false, options);
}
std::unique_ptr<HostOp> make(const SoftsignBackward& d, const CpuOpOptions& options) {
  return std::make_unique<SoftsignOp>(d.x, true, options);
}

}  // namespace dp::kernels
