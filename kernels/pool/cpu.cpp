// Max pooling on CPUs.
#include <memory>

#include "kernels/device/cpu/bfloat16.h"
#include "kernels/device/cpu/cpu_layout.h"
#include "kernels/device/cpu/cpu_op.h"
#include "kernels/device/cpu/parallel.h"
#include "kernels/elementwise/cpu_dropout_plane.h"
#include "kernels/op_args.h"
#include "kernels/pool/cpu_plane.h"

namespace dp::kernels {
namespace {

// MaxPool2dForward with ReLU and dropout folded in, and its gradient.

PoolPlanes planes_of(const PoolViews& views, const Window& window) {
  const ActivationView &x = views.large, &y = views.pooled;
  return {x.h, x.w, y.h, y.w, x.block, window};
}

class MaxPoolForwardOp : public HostOp {
 public:
  MaxPoolForwardOp(const MaxPool2dForward& d, const CpuOpOptions& options) : relu_(d.relu), training_(d.training) {
    const TensorDesc x = resolved_plain(d.x);
    tensors_ = {x, in_layout_of(x, d.y)};
    const PoolViews views = pool_views("max_pool2d", tensors_[0], tensors_[1]);
    planes_ = planes_of(views, d.window);
    x_ = views.large, y_ = views.pooled;
    if (d.training && d.dropout) {
      layer_ = d.dropout->layer;
      dropout_.emplace(*d.dropout, y_);
    }
    threads_ = threads_for(options.threads, static_cast<std::int64_t>(x.layout.bytes));
  }
  std::string implementation() const override { return planes_.tiles() ? "own:tiles" : "own:windows"; }

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<MaxPool2dForward>(pointers);
    with_element_type(tensors_[0].type, [&]<typename T>() { pool<T>(args); });
  }

 private:
  template <typename T>
  void pool(const Pointers<MaxPool2dForward>& args) const {
    const T* x = static_cast<const T*>(args.x);
    T* y = static_cast<T*>(args.y);
    std::uint8_t* mask = training_ ? static_cast<std::uint8_t*>(args.mask) : nullptr;
    parallel_ranges(threads_, x_.n * x_.blocks, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t n = i / x_.blocks, block = i % x_.blocks, at = y_.at(n, block);
        std::uint8_t* plane_mask = mask == nullptr ? nullptr : mask + at;
        max_pool_plane(planes_, relu_, x + x_.at(n, block), y + at, plane_mask);
        if (!dropout_) continue;
        const DropoutWords words(*static_cast<const StepInputs*>(args.inputs), layer_,
                                 static_cast<const std::int64_t*>(args.samples)[n]);
        dropout_->apply(words, block, y + at, y + at, plane_mask);  // while it is in the cache
      }
    });
  }

  bool relu_, training_;
  PoolPlanes planes_;
  ActivationView x_, y_;
  std::uint32_t layer_ = 0;
  std::optional<DropoutPlane> dropout_;
  int threads_ = 1;
};

class MaxPoolBackwardOp : public HostOp {
 public:
  MaxPoolBackwardOp(const MaxPool2dBackward& d, const CpuOpOptions& options) {
    const TensorDesc dy = d.dy.layout.any() && !d.dx.layout.any() ? in_layout_of(d.dx, d.dy) : resolved_plain(d.dy);
    tensors_ = {dy, in_layout_of(dy, d.dx)};
    const PoolViews views = pool_views("max_pool2d", tensors_[1], tensors_[0]);
    planes_ = planes_of(views, d.window);
    dx_ = views.large, dy_ = views.pooled;
    if (d.dropout) scale_ = dropout_scale(*d.dropout);
    threads_ = threads_for(options.threads, static_cast<std::int64_t>(tensors_[1].layout.bytes));
  }
  std::string implementation() const override { return planes_.tiles() ? "own:tiles" : "own:windows"; }

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<MaxPool2dBackward>(pointers);
    const std::uint8_t* mask = static_cast<const std::uint8_t*>(args.mask);
    with_element_type(tensors_[0].type, [&]<typename T>() {
      const T* dy = static_cast<const T*>(args.dy);
      T* dx = static_cast<T*>(args.dx);
      parallel_ranges(threads_, dx_.n * dx_.blocks, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const std::int64_t n = i / dx_.blocks, block = i % dx_.blocks, at = dy_.at(n, block);
          max_pool_plane_backward(planes_, scale_, dy + at, mask + at, dx + dx_.at(n, block));
        }
      });
    });
  }

 private:
  PoolPlanes planes_;
  ActivationView dy_, dx_;
  float scale_ = 1;
  int threads_ = 1;
};

}  // namespace

std::unique_ptr<HostOp> make(const MaxPool2dForward& d, const CpuOpOptions& options) {
  return std::make_unique<MaxPoolForwardOp>(d, options);
}
std::unique_ptr<HostOp> make(const MaxPool2dBackward& d, const CpuOpOptions& options) {
  return std::make_unique<MaxPoolBackwardOp>(d, options);
}

}  // namespace dp::kernels
