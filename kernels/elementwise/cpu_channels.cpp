// Products that broadcast, the factors of dropped channels, and copies of channels, on CPUs.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/device/cpu/bfloat16.h"
#include "kernels/device/cpu/cpu_layout.h"
#include "kernels/device/cpu/cpu_op.h"
#include "kernels/device/cpu/lanes.h"
#include "kernels/device/cpu/parallel.h"
#include "kernels/elementwise/reference_dropout.h"
#include "kernels/op_args.h"

namespace dp::kernels {
namespace {

// MultiplyForward and MultiplyBackward.

template <typename T>
struct Factors {
  const T *dy, *x, *s;
  T *y, *dx, *ds;  // null: not wanted
};

// Runs of contiguous elements of x. Element j of each run is multiplied by the factor s[j].
struct Columns {
  std::int64_t length;  // of a run
  std::int64_t runs;
  std::int64_t stride;  // from one run to the next
};

// Writes y, or dx and ds.
template <typename T>
void multiply_columns(const Columns& part, const Factors<T>& at) {
  constexpr std::int64_t kChunk = 64;  // runs that are summed in float
  for_lanes_of(0, part.length, [&](auto lanes, std::int64_t j) {
    using V = decltype(lanes);
    typedef typename V::Floats Floats;
    const Floats s = V::load(at.s + j);
    double sums[V::count] = {};
    for (std::int64_t begin = 0; begin < part.runs; begin += kChunk) {
      Floats sum{};
      for (std::int64_t run = begin; run < std::min(begin + kChunk, part.runs); ++run) {
        const std::int64_t i = run * part.stride + j;
        const Floats x = V::load(at.x + i);
        if (at.y) V::store(at.y + i, x * s);
        if (!at.dy) continue;
        const Floats dy = V::load(at.dy + i);
        sum += dy * x;
        if (at.dx) V::store(at.dx + i, dy * s);
      }
      for (int k = 0; k < V::count; ++k) sums[k] += static_cast<double>(sum[k]);
    }
    if (!at.ds) return;
    Floats result{};
    for (int k = 0; k < V::count; ++k) result[k] = static_cast<float>(sums[k]);
    V::store(at.ds + j, result);
  });
}

// Multiplies a run of contiguous elements by one factor: writes y or dx. Returns the sum of dy * x.
template <typename T>
double multiply_run(std::int64_t length, float s, const Factors<T>& at) {
  LaneSum sum;
  for_lanes_of(0, length, [&](auto lanes, std::int64_t i) {
    using V = decltype(lanes);
    const typename V::Floats x = V::load(at.x + i);
    if (at.y) V::store(at.y + i, x * s);
    if (!at.dy) return;
    const typename V::Floats dy = V::load(at.dy + i);
    sum.add(dy * x);
    if (at.dx) V::store(at.dx + i, dy * s);
  });
  return sum.total();
}

class MultiplyOp : public HostOp {
 public:
  // `tensors`: number of tensors of x's size that the op reads or writes.
  MultiplyOp(const TensorDesc& x, const TensorDesc& s, int tensors, const CpuOpOptions& options)
      : broadcast_(broadcast_of(x.shape, s.shape)), x_(resolved_plain(x)) {
    s_ = {s.shape, s.type, broadcast_ == Broadcast::none ? x_.layout : plain_cpu_layout(s.shape, s.type)};
    threads_ = threads_for(options.threads, static_cast<std::int64_t>(x_.layout.bytes) * tensors);
    if (broadcast_ != Broadcast::none) view_ = view_of(x_);
  }
  std::string implementation() const override { return "own:simd"; }

 protected:
  template <typename T>
  void multiply(const Factors<T>& all) const {
    if (broadcast_ == Broadcast::none) return multiply_alike(all);
    if (broadcast_ == Broadcast::pixels)
      parallel_ranges(threads_, view_.n * view_.blocks, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) multiply_channels(all, i / view_.blocks, i % view_.blocks);
      });
    else
      parallel_ranges(threads_, view_.n, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t n = begin; n < end; ++n) multiply_pixels(all, n);
      });
  }

  Broadcast broadcast_;
  TensorDesc x_, s_;

 private:
  // The tensors from element `x` of x and factor `s` on.
  template <typename T>
  static Factors<T> from(const Factors<T>& all, std::int64_t x, std::int64_t s) {
    const auto at = [](auto* tensor, std::int64_t element) { return tensor ? tensor + element : nullptr; };
    return {at(all.dy, x), at(all.x, x), at(all.s, s), at(all.y, x), at(all.dx, x), at(all.ds, s)};
  }

  // Multiplies whole buffers. Their padding stays zero.
  template <typename T>
  void multiply_alike(const Factors<T>& all) const {
    const auto count = static_cast<std::int64_t>(x_.layout.bytes / sizeof(T));
    parallel_ranges(threads_, count, 16, [=](std::int64_t begin, std::int64_t end) {
      for_lanes_of(begin, end, [=](auto lanes, std::int64_t i) {
        using V = decltype(lanes);
        const typename V::Floats x = V::load(all.x + i), s = V::load(all.s + i);
        if (all.y) V::store(all.y + i, x * s);
        if (!all.dy) return;
        const typename V::Floats dy = V::load(all.dy + i);
        if (all.dx) V::store(all.dx + i, dy * s);
        if (all.ds) V::store(all.ds + i, dy * x);
      });
    });
  }

  // Multiplies one block of channels of one sample. Each channel has a factor.
  template <typename T>
  void multiply_channels(const Factors<T>& all, std::int64_t n, std::int64_t block) const {
    const std::int64_t pixels = view_.h * view_.w, first = block * view_.block,
                       channels = std::min(view_.block, view_.c - first);
    const Factors<T> at = from(all, view_.at(n, block), n * view_.c + first);
    if (view_.block == 1) {
      const double sum = multiply_run(pixels, to_float(*at.s), at);
      if (at.ds) *at.ds = from_float<T>(static_cast<float>(sum));
      return;
    }
    multiply_columns({channels, pixels, view_.block}, at);
    for (T* const to : {at.y, at.dx})
      if (to && channels < view_.block)
        for (std::int64_t p = 0; p < pixels; ++p)
          std::fill(to + p * view_.block + channels, to + (p + 1) * view_.block, T{});
  }

  // Multiplies one sample. Each pixel has a factor.
  template <typename T>
  void multiply_pixels(const Factors<T>& all, std::int64_t n) const {
    const std::int64_t pixels = view_.h * view_.w;
    if (view_.block == 1)
      return multiply_columns({pixels, view_.blocks, view_.stride_block}, from(all, view_.at(n, 0), n * pixels));
    for (std::int64_t p = 0; p < pixels; ++p) {
      double sum = 0;
      const float s = to_float(all.s[n * pixels + p]);
      for (std::int64_t block = 0; block < view_.blocks; ++block)
        sum += multiply_run(view_.block, s, from(all, view_.at(n, block) + p * view_.block, 0));
      if (all.ds) all.ds[n * pixels + p] = from_float<T>(static_cast<float>(sum));
    }
  }

  ActivationView view_;
  int threads_ = 1;
};

class MultiplyForwardOp final : public MultiplyOp {
 public:
  MultiplyForwardOp(const MultiplyForward& d, const CpuOpOptions& options) : MultiplyOp(d.x, d.s, 2, options) {
    tensors_ = {x_, s_, x_};
  }
  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<MultiplyForward>(pointers);
    with_element_type(x_.type, [&]<typename T>() {
      multiply<T>({.dy = nullptr,
                   .x = static_cast<const T*>(args.x),
                   .s = static_cast<const T*>(args.s),
                   .y = static_cast<T*>(args.y),
                   .dx = nullptr,
                   .ds = nullptr});
    });
  }
};

class MultiplyBackwardOp final : public MultiplyOp {
 public:
  MultiplyBackwardOp(const MultiplyBackward& d, const CpuOpOptions& options) : MultiplyOp(d.x, d.s, 3, options) {
    tensors_ = {x_, x_, s_, x_, s_};
  }
  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<MultiplyBackward>(pointers);
    with_element_type(x_.type, [&]<typename T>() {
      multiply<T>({.dy = static_cast<const T*>(args.dy),
                   .x = static_cast<const T*>(args.x),
                   .s = static_cast<const T*>(args.s),
                   .y = nullptr,
                   .dx = static_cast<T*>(args.dx),
                   .ds = static_cast<T*>(args.ds)});
    });
  }
};

// DropFactors.

class DropFactorsOp final : public HostOp {
 public:
  DropFactorsOp(const DropFactors& d) : dropout_(d.dropout), whole_samples_(d.whole_samples) {
    tensors_ = {{d.y.shape, d.y.type, plain_cpu_layout(d.y.shape, d.y.type)}};
  }
  std::string implementation() const override { return "own:philox"; }

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<DropFactors>(pointers);
    const auto* const samples = static_cast<const std::int64_t*>(args.samples);
    const auto& inputs = *static_cast<const StepInputs*>(args.inputs);
    const std::int64_t channels = tensors_[0].shape[1];
    const auto scale = static_cast<float>(reference::dropout_scale(dropout_));
    with_element_type(tensors_[0].type, [&]<typename T>() {
      for (std::int64_t i = 0; i < tensors_[0].shape.numel(); ++i) {
        const std::int64_t element = whole_samples_ ? 0 : i % channels;
        const bool kept = reference::dropout_keeps(dropout_, inputs, samples[i / channels], element);
        static_cast<T*>(args.y)[i] = from_float<T>(kept ? scale : 0.f);
      }
    });
  }

 private:
  DropoutSpec dropout_;
  bool whole_samples_;
};

// CopyChannels.

class CopyChannelsOp final : public HostOp {
 public:
  CopyChannelsOp(const CopyChannels& d, const CpuOpOptions& options)
      : from_(d.from), to_(d.to), count_(d.count), ends_(d.to + (d.count - 1) * d.to_step + 1 == d.y.shape[1]) {
    const TensorDesc x = resolved_plain(d.x);
    tensors_ = {x, x.shape.rank() == 4 ? in_layout_of(x, d.y) : resolved_plain(d.y)};
    x_ = channels_view_of(x), y_ = channels_view_of(tensors_[1]);
    threads_ = threads_for(options.threads, static_cast<std::int64_t>(d.bytes()));
    if (d.from_step == 1 && d.to_step == 1) return;
    const auto place = [](const ActivationView& view, std::int64_t c) {
      return c / view.block * view.stride_block + c % view.block;
    };
    for (std::int64_t i = 0; i < count_; ++i)
      apart_.emplace_back(place(x_, from_ + i * d.from_step), place(y_, to_ + i * d.to_step));
  }
  std::string implementation() const override { return "own:copy"; }

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<CopyChannels>(pointers);
    with_element_type(tensors_[0].type, [&]<typename T>() {
      parallel_ranges(threads_, y_.n, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t n = begin; n < end; ++n) {
          const T* const x = static_cast<const T*>(args.x) + n * x_.stride_n;
          T* const y = static_cast<T*>(args.y) + n * y_.stride_n;
          apart_.empty() ? copy(x, y) : copy_apart(x, y);
          if (ends_) clear_padding(y);
        }
      });
    });
  }

 private:
  // Copies one sample. A run is a range of channels that is contiguous in both layouts.
  template <typename T>
  void copy(const T* x, T* y) const {
    const std::int64_t pixels = y_.h * y_.w;
    for (std::int64_t done = 0, run = 0; done < count_; done += run) {
      const std::int64_t from = (from_ + done) % x_.block, to = (to_ + done) % y_.block;
      run = std::min({count_ - done, x_.block - from, y_.block - to});
      const T* const source = x + (from_ + done) / x_.block * x_.stride_block + from;
      T* const target = y + (to_ + done) / y_.block * y_.stride_block + to;
      if (run == x_.block && run == y_.block)
        std::memcpy(target, source, static_cast<std::size_t>(run * pixels) * sizeof(T));
      else
        for (std::int64_t p = 0; p < pixels; ++p)
          std::memcpy(target + p * y_.block, source + p * x_.block, static_cast<std::size_t>(run) * sizeof(T));
    }
  }
  // The same, if the channels are not next to each other.
  template <typename T>
  void copy_apart(const T* x, T* y) const {
    const std::int64_t pixels = y_.h * y_.w;
    if (x_.block == 1 && y_.block == 1) {
      for (const auto& [from, to] : apart_) std::memcpy(y + to, x + from, static_cast<std::size_t>(pixels) * sizeof(T));
      return;
    }
    for (std::int64_t p = 0; p < pixels; ++p)
      for (const auto& [from, to] : apart_) y[to + p * y_.block] = x[from + p * x_.block];
  }
  template <typename T>
  void clear_padding(T* y) const {
    const std::int64_t used = y_.c - (y_.blocks - 1) * y_.block;
    T* const last = y + (y_.blocks - 1) * y_.stride_block;
    for (std::int64_t p = 0; used < y_.block && p < y_.h * y_.w; ++p)
      std::fill(last + p * y_.block + used, last + (p + 1) * y_.block, T{});
  }

  std::int64_t from_, to_, count_;
  bool ends_;                                                 // with the last channel of y
  std::vector<std::pair<std::int64_t, std::int64_t>> apart_;  // places of the channels in x and y; empty: no steps
  ActivationView x_, y_;
  int threads_ = 1;
};

}  // namespace

std::unique_ptr<HostOp> make(const MultiplyForward& d, const CpuOpOptions& options) {
  return std::make_unique<MultiplyForwardOp>(d, options);
}
std::unique_ptr<HostOp> make(const MultiplyBackward& d, const CpuOpOptions& options) {
  return std::make_unique<MultiplyBackwardOp>(d, options);
}
std::unique_ptr<HostOp> make(const DropFactors& d, const CpuOpOptions&) { return std::make_unique<DropFactorsOp>(d); }
std::unique_ptr<HostOp> make(const CopyChannels& d, const CpuOpOptions& options) {
  return std::make_unique<CopyChannelsOp>(d, options);
}

}  // namespace dp::kernels
