// Addition, ReLU, dropout, Fill and Accumulate on CPUs.
#include <cstring>
#include <memory>

#include "kernels/device/cpu/announce.h"
#include "kernels/device/cpu/bfloat16.h"
#include "kernels/device/cpu/cpu_layout.h"
#include "kernels/device/cpu/cpu_op.h"
#include "kernels/device/cpu/lanes.h"
#include "kernels/device/cpu/parallel.h"
#include "kernels/elementwise/cpu_dropout_plane.h"
#include "kernels/op_args.h"

namespace dp::kernels {
namespace {

// AddForward.

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

// ReluForward and ReluBackward as separate ops, where no other op can fuse them.

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

// DropoutApply.

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
