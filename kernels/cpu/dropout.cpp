// DropoutApply.
#include <memory>

#include "kernels/cpu/announce.h"
#include "kernels/cpu/bfloat16/element.h"
#include "kernels/cpu/cpu_op.h"
#include "kernels/cpu/dropout_plane.h"
#include "kernels/cpu/parallel.h"
#include "kernels/op_args.h"

namespace dp::kernels {
namespace {

class DropoutOp : public HostOp {
 public:
  DropoutOp(const DropoutApply& d, const CpuOpOptions& options) : layer_(d.dropout.layer) {
    tensors_ = {resolved_plain(d.x)};
    view_ = view_of(tensors_[0]);
    plane_.emplace(d.dropout, view_);
    threads_ = threads_for(options.threads, static_cast<std::int64_t>(tensors_[0].layout.bytes));
  }
  std::string implementation() const override { return "own:philox"; }

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<DropoutApply>(pointers);
    const std::int64_t* samples = static_cast<const std::int64_t*>(args.samples);
    const StepInputs& step = *static_cast<const StepInputs*>(args.inputs);
    with_element_type(tensors_[0].type, [&]<typename T>() {
      const T* x = static_cast<const T*>(args.x);
      T* y = static_cast<T*>(args.y);
      parallel_ranges(threads_, view_.n * view_.blocks, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const std::int64_t n = i / view_.blocks, block = i % view_.blocks, at = view_.at(n, block);
          plane_->apply(DropoutWords(step, layer_, samples[n]), block, x + at, y + at, nullptr);
        }
      });
    });
  }

 private:
  ActivationView view_;
  std::uint32_t layer_;
  std::optional<DropoutPlane> plane_;
  int threads_ = 1;
};

}  // namespace

std::unique_ptr<HostOp> make(const DropoutApply& d, const CpuOpOptions& options) {
  return std::make_unique<DropoutOp>(d, options);
}

}  // namespace dp::kernels
