// AddForward.
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
class AddOp : public HostOp {
 public:
  AddOp(const AddForward& d, const CpuOpOptions& options) : relu_(d.relu) {
    tensors_ = {resolved_plain(d.x)};
    count_ = static_cast<std::int64_t>(tensors_[0].layout.bytes / size_of(d.x.type));
    threads_ = threads_for(options.threads, static_cast<std::int64_t>(tensors_[0].layout.bytes) * 3);
  }
  std::string implementation() const override { return "own:simd"; }

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<AddForward>(pointers);
    with_element_type(tensors_[0].type, [&]<typename T>() {
      add(static_cast<const T*>(args.a), static_cast<const T*>(args.b), static_cast<T*>(args.y));
    });
  }

 private:
  template <typename T>
  void add(const T* a, const T* b, T* y) const {
    parallel_ranges(threads_, count_, 16, [=, relu = relu_](std::int64_t begin, std::int64_t end) {
      for_lanes_of(begin, end, [=](auto lanes, std::int64_t i) {
        using V = decltype(lanes);
        const typename V::Floats sum = V::load(a + i) + V::load(b + i);
        V::store(y + i, relu ? (sum < 0.f ? typename V::Floats{} : sum) : sum);  // NaN stays NaN
      });
    });
  }

  bool relu_;
  std::int64_t count_ = 0;
  int threads_ = 1;
};

}  // namespace

std::unique_ptr<HostOp> make(const AddForward& d, const CpuOpOptions& options) {
  return std::make_unique<AddOp>(d, options);
}

}  // namespace dp::kernels
