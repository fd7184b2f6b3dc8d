// Activation functions on CPUs.
#include <algorithm>
#include <memory>

#include "kernels/device/cpu/bfloat16.h"
#include "kernels/device/cpu/cpu_layout.h"
#include "kernels/device/cpu/cpu_op.h"
#include "kernels/device/cpu/lanes.h"
#include "kernels/device/cpu/parallel.h"
#include "kernels/device/cpu/vector_math.h"
#include "kernels/op_args.h"

namespace dp::kernels {
namespace {

constexpr std::int64_t kChunk = 256;  // elements; fits in the L1 cache as float32

// Calls body(inputs, outputs, count) for chunks of [begin, end) in float32. Converts other types.
template <typename T, std::size_t kInputs, typename Body>
void in_floats(const std::array<const T*, kInputs>& from, T* to, std::int64_t begin, std::int64_t end,
               const Body& body) {
  if constexpr (std::is_same_v<T, float>) {
    std::array<const float*, kInputs> inputs = from;
    for (const float*& input : inputs) input += begin;
    body(inputs, to + begin, end - begin);
  } else {
    float floats[kInputs + 1][kChunk];
    std::array<const float*, kInputs> inputs;
    for (std::size_t k = 0; k < kInputs; ++k) inputs[k] = floats[k];
    float* const outputs = floats[kInputs];
    for (; begin < end; begin += kChunk) {
      const std::int64_t count = std::min(kChunk, end - begin);
      for (std::size_t k = 0; k < kInputs; ++k)
        for (std::int64_t i = 0; i < count; ++i) floats[k][i] = to_float(from[k][begin + i]);
      body(inputs, outputs, count);
      for_lanes_of(0, count, [&](auto lanes, std::int64_t i) {
        using V = decltype(lanes);
        V::store(to + begin + i, V::load(outputs + i));
      });
    }
  }
}

// Runs over the whole buffer in any layout. Padding stays zero.
class FunctionOp : public HostOp {
 public:
  FunctionOp(const TensorDesc& x, const Function& function, const CpuOpOptions& options) : function_(function) {
    tensors_ = {resolved_plain(x)};
    count_ = static_cast<std::int64_t>(tensors_[0].layout.bytes / size_of(x.type));
    threads_ = threads_for(options.threads, static_cast<std::int64_t>(tensors_[0].layout.bytes));
  }
  std::string implementation() const override { return "own:simd"; }

 protected:
  Function function_;
  std::int64_t count_ = 0;
  int threads_ = 1;
};

class FunctionForwardOp final : public FunctionOp {
 public:
  FunctionForwardOp(const FunctionForward& d, const CpuOpOptions& options)
      : FunctionOp(d.x, d.function, options), view_(view_of(tensors_[0])) {
    moves_zero_ = std::visit([](const auto& function) { return function.value(0.0f) != 0; }, function_);
  }

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<FunctionForward>(pointers);
    with_element_type(tensors_[0].type, [&]<typename T>() {
      std::visit([&](const auto& function) { run(function, static_cast<const T*>(args.x), static_cast<T*>(args.y)); },
                 function_);
      if (moves_zero_) clear_padding(static_cast<T*>(args.y));
    });
  }

 private:
  template <typename F, typename T>
  void run(const F& function, const T* x, T* y) const {
    parallel_ranges(threads_, count_, kChunk, [=](std::int64_t begin, std::int64_t end) {
      in_floats<T, 1>({x}, y, begin, end, [=](const auto& in, float* out, std::int64_t count) {
        const float* const arguments = in[0];
#pragma omp simd
        for (std::int64_t i = 0; i < count; ++i) out[i] = function.value(arguments[i]);
      });
    });
  }
  template <typename T>
  void clear_padding(T* y) const {
    const std::int64_t last = view_.blocks - 1, used = view_.c - last * view_.block;
    if (used == view_.block) return;
    for (std::int64_t n = 0; n < view_.n; ++n)
      for (std::int64_t pixel = 0; pixel < view_.h * view_.w; ++pixel) {
        T* const channels = y + view_.at(n, last) + pixel * view_.block;
        std::fill(channels + used, channels + view_.block, T{});
      }
  }

  ActivationView view_;
  bool moves_zero_;
};

// The gradient of padding is zero, so that of the argument is, too.
class FunctionBackwardOp final : public FunctionOp {
 public:
  FunctionBackwardOp(const FunctionBackward& d, const CpuOpOptions& options) : FunctionOp(d.x, d.function, options) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<FunctionBackward>(pointers);
    with_element_type(tensors_[0].type, [&]<typename T>() {
      std::visit(
          [&](const auto& function) {
            run(function, static_cast<const T*>(args.dy), static_cast<const T*>(args.x), static_cast<T*>(args.dx));
          },
          function_);
    });
  }

 private:
  template <typename F, typename T>
  void run(const F& function, const T* dy, const T* x, T* dx) const {
    parallel_ranges(threads_, count_, kChunk, [=](std::int64_t begin, std::int64_t end) {
      in_floats<T, 2>({dy, x}, dx, begin, end, [=](const auto& in, float* out, std::int64_t count) {
        const float *const gradients = in[0], *const arguments = in[1];
#pragma omp simd
        for (std::int64_t i = 0; i < count; ++i) out[i] = gradients[i] * function.derivative(arguments[i]);
      });
    });
  }
};

}  // namespace

std::unique_ptr<HostOp> make(const FunctionForward& d, const CpuOpOptions& options) {
  return std::make_unique<FunctionForwardOp>(d, options);
}
std::unique_ptr<HostOp> make(const FunctionBackward& d, const CpuOpOptions& options) {
  return std::make_unique<FunctionBackwardOp>(d, options);
}

}  // namespace dp::kernels
