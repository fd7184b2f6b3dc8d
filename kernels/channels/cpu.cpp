// Ops along the channels on CPUs.
#include <algorithm>
#include <limits>
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

class ChannelsOp : public HostOp {
 public:
  std::string implementation() const override { return "own:simd"; }

 protected:
  // `tensors`: number of tensors of x's size that the op reads or writes.
  ChannelsOp(const TensorDesc& x, int tensors, const CpuOpOptions& options)
      : view_(channels_view_of(resolved_plain(x))) {
    tensors_ = {resolved_plain(x)};
    threads_ = threads_for(options.threads, static_cast<std::int64_t>(tensors_[0].layout.bytes) * tensors);
  }

  // Calls body(sample, block of channels) on all threads.
  template <typename Body>
  void for_planes(const Body& body) const {
    parallel_ranges(threads_, view_.n * view_.blocks, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) body(i / view_.blocks, i % view_.blocks);
    });
  }
  std::int64_t pixels() const { return view_.h * view_.w; }
  std::int64_t channels_of_block(std::int64_t block) const {
    return std::min(view_.block, view_.c - block * view_.block);
  }
  template <typename T>
  void clear_padding(T* plane, std::int64_t channels) const {
    for (std::int64_t p = 0; channels < view_.block && p < pixels(); ++p)
      std::fill(plane + p * view_.block + channels, plane + (p + 1) * view_.block, T{});
  }

  ActivationView view_;
  int threads_ = 1;
};

// ChannelwiseForward and ChannelwiseBackward.

// `shared`: one number for all channels.
template <typename V>
typename V::Floats number_at(const float* w, std::int64_t channel, bool shared) {
  return shared ? typename V::Floats{} + *w : V::load(w + channel);
}

class ChannelwiseForwardOp final : public ChannelsOp {
 public:
  ChannelwiseForwardOp(const ChannelwiseForward& d, const CpuOpOptions& options)
      : ChannelsOp(d.x, 2, options), function_(d.function), shared_(d.numbers == 1) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<ChannelwiseForward>(pointers);
    const auto* const w = static_cast<const float*>(args.w);
    with_element_type(tensors_[0].type, [&]<typename T>() {
      for_planes([&](std::int64_t n, std::int64_t block) {
        const T* const x = static_cast<const T*>(args.x) + view_.at(n, block);
        T* const y = static_cast<T*>(args.y) + view_.at(n, block);
        function_ == Channelwise::add
            ? run_plane(x, w, y, block, [](auto value, auto number) { return value + number; })
            : run_plane(x, w, y, block, [](auto value, auto number) { return value > 0 ? value : value * number; });
      });
    });
  }

 private:
  template <typename T, typename Map>
  void run_plane(const T* x, const float* w, T* y, std::int64_t block, const Map& map) const {
    const std::int64_t first = block * view_.block, channels = channels_of_block(block);
    if (view_.block == 1) {
      const float* const number = w + (shared_ ? 0 : first);
      for_lanes_of(0, pixels(), [&](auto lanes, std::int64_t i) {
        using V = decltype(lanes);
        V::store(y + i, map(V::load(x + i), number_at<V>(number, 0, true)));
      });
      return;
    }
    for (std::int64_t p = 0; p < pixels(); ++p)
      for_lanes_of(0, channels, [&](auto lanes, std::int64_t c) {
        using V = decltype(lanes);
        const std::int64_t at = p * view_.block + c;
        V::store(y + at, map(V::load(x + at), number_at<V>(w, first + c, shared_)));
      });
    clear_padding(y, channels);
  }

  Channelwise function_;
  bool shared_;
};

// The planes are summed in parallel. Their sums are then added in the order of the samples.
class ChannelwiseBackwardOp final : public ChannelsOp {
 public:
  ChannelwiseBackwardOp(const ChannelwiseBackward& d, const CpuOpOptions& options)
      : ChannelsOp(d.x, d.function == Channelwise::add ? 1 : 3, options),
        prelu_(d.function == Channelwise::prelu),
        shared_(d.numbers == 1) {}
  std::size_t workspace_bytes() const override {  // the sum of each plane's channels
    return static_cast<std::size_t>(view_.n * view_.c) * sizeof(double);
  }

  void execute(std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<ChannelwiseBackward>(pointers);
    auto* const sums = static_cast<double*>(workspace);
    with_element_type(tensors_[0].type, [&]<typename T>() {
      for_planes([&](std::int64_t n, std::int64_t block) {
        const std::int64_t at = view_.at(n, block);
        const Plane<T> plane{static_cast<const T*>(args.dy) + at, static_cast<const T*>(args.x) + at,
                             static_cast<const float*>(args.w), static_cast<T*>(args.dx) + at,
                             sums + n * view_.c + block * view_.block};
        prelu_ ? run_plane<true>(plane, block) : run_plane<false>(plane, block);
      });
    });
    auto* const dw = static_cast<float*>(args.dw);
    for (std::int64_t n = 1; n < view_.n; ++n)
      for (std::int64_t c = 0; c < view_.c; ++c) sums[c] += sums[n * view_.c + c];
    if (shared_)
      for (std::int64_t c = 1; c < view_.c; ++c) sums[0] += sums[c];
    for (std::int64_t c = 0; c < (shared_ ? 1 : view_.c); ++c) dw[c] = static_cast<float>(sums[c]);
  }

 private:
  template <typename T>
  struct Plane {
    const T *dy, *x;
    const float* w;
    T* dx;
    double* sums;
  };

  // Writes dx of one vector; returns the summands of dw.
  template <bool kPrelu, typename V, typename T>
  static typename V::Floats one_vector(const Plane<T>& plane, std::int64_t at, typename V::Floats number) {
    const typename V::Floats dy = V::load(plane.dy + at);
    if constexpr (!kPrelu) return dy;
    const typename V::Floats x = V::load(plane.x + at);
    V::store(plane.dx + at, x > 0 ? dy : dy * number);
    return x > 0 ? typename V::Floats{} : dy * x;
  }

  template <bool kPrelu, typename T>
  void run_plane(const Plane<T>& plane, std::int64_t block) const {
    constexpr std::int64_t kChunk = 64;  // pixels that are summed in float
    const std::int64_t first = block * view_.block, channels = channels_of_block(block);
    if (view_.block == 1) {
      LaneSum sum;
      const float number = kPrelu ? plane.w[shared_ ? 0 : first] : 0;
      for_lanes_of(0, pixels(), [&](auto lanes, std::int64_t i) {
        using V = decltype(lanes);
        sum.add(one_vector<kPrelu, V>(plane, i, typename V::Floats{} + number));
      });
      plane.sums[0] = sum.total();
      return;
    }
    for_lanes_of(0, channels, [&](auto lanes, std::int64_t c) {
      using V = decltype(lanes);
      typename V::Floats number{};
      if constexpr (kPrelu) number = number_at<V>(plane.w, first + c, shared_);
      double sums[V::count] = {};
      for (std::int64_t begin = 0; begin < pixels(); begin += kChunk) {
        typename V::Floats sum{};
        for (std::int64_t p = begin; p < std::min(begin + kChunk, pixels()); ++p)
          sum += one_vector<kPrelu, V>(plane, p * view_.block + c, number);
        for (int k = 0; k < V::count; ++k) sums[k] += static_cast<double>(sum[k]);
      }
      std::copy_n(sums, V::count, plane.sums + c);
    });
    if constexpr (kPrelu) clear_padding(plane.dx, channels);
  }

  bool prelu_, shared_;
};

// SoftmaxForward and SoftmaxBackward. Row-major, a thread takes runs of kRun pixels, else the pixels one by one.

class SoftmaxOp : public ChannelsOp {
 protected:
  static constexpr std::int64_t kRun = 64;

  using ChannelsOp::ChannelsOp;

  bool by_runs() const { return view_.block == 1; }
  // Calls body(first element of channel 0, pixels of the run, thread).
  template <typename Body>
  void for_runs(const Body& body) const {
    const std::int64_t length = by_runs() ? kRun : 1, runs = (pixels() + length - 1) / length;
    parallel_ranges(threads_, view_.n * runs, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t pixel = i % runs * length;
        body(i / runs * view_.stride_n + pixel * view_.block, std::min(length, pixels() - pixel), thread);
      }
    });
  }
  // Calls body(first element, channels, first channel) for each block of one pixel.
  template <typename Body>
  void for_blocks(std::int64_t at, const Body& body) const {
    for (std::int64_t block = 0; block < view_.blocks; ++block)
      body(at + block * view_.stride_block, channels_of_block(block), block * view_.block);
  }
};

class SoftmaxForwardOp final : public SoftmaxOp {
 public:
  SoftmaxForwardOp(const SoftmaxForward& d, const CpuOpOptions& options) : SoftmaxOp(d.x, 2, options) {}
  std::size_t workspace_bytes() const override {  // the exponentials of a run, of each thread
    return static_cast<std::size_t>(threads_ * run_values()) * sizeof(float);
  }

  void execute(std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<SoftmaxForward>(pointers);
    with_element_type(tensors_[0].type, [&]<typename T>() {
      const T* const x = static_cast<const T*>(args.x);
      T* const y = static_cast<T*>(args.y);
      for_runs([&](std::int64_t at, std::int64_t length, int thread) {
        float* const values = static_cast<float*>(workspace) + thread * run_values();
        by_runs() ? one_run(x + at, y + at, length, values) : one_pixel(x, y, at, values);
      });
    });
  }

 private:
  std::int64_t run_values() const { return view_.c * (by_runs() ? kRun : 1); }

  template <typename T>
  void one_run(const T* x, T* y, std::int64_t length, float* values) const {
    float largest[kRun], sums[kRun] = {};
    std::fill_n(largest, kRun, -std::numeric_limits<float>::infinity());
    for (std::int64_t c = 0; c < view_.c; ++c)
      for (std::int64_t i = 0; i < length; ++i) {
        const float value = to_float(x[c * view_.stride_block + i]);
        values[c * kRun + i] = value;
        largest[i] = value > largest[i] ? value : largest[i];
      }
    for (std::int64_t c = 0; c < view_.c; ++c) {
      float* const of_channel = values + c * kRun;
#pragma omp simd
      for (std::int64_t i = 0; i < length; ++i) sums[i] += of_channel[i] = std::exp(of_channel[i] - largest[i]);
    }
    for (std::int64_t c = 0; c < view_.c; ++c)
      for (std::int64_t i = 0; i < length; ++i)
        y[c * view_.stride_block + i] = from_float<T>(values[c * kRun + i] / sums[i]);
  }

  template <typename T>
  void one_pixel(const T* x, T* y, std::int64_t at, float* values) const {
    float largest = -std::numeric_limits<float>::infinity(), sum = 0;
    for_blocks(at, [&](std::int64_t from, std::int64_t channels, std::int64_t first) {
      for (std::int64_t c = 0; c < channels; ++c) values[first + c] = to_float(x[from + c]);
    });
#pragma omp simd reduction(max : largest)
    for (std::int64_t c = 0; c < view_.c; ++c) largest = values[c] > largest ? values[c] : largest;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t c = 0; c < view_.c; ++c) sum += values[c] = std::exp(values[c] - largest);
    for_blocks(at, [&](std::int64_t to, std::int64_t channels, std::int64_t first) {
      for (std::int64_t c = 0; c < channels; ++c) y[to + c] = from_float<T>(values[first + c] / sum);
      std::fill(y + to + channels, y + to + view_.block, T{});
    });
  }
};

class SoftmaxBackwardOp final : public SoftmaxOp {
 public:
  SoftmaxBackwardOp(const SoftmaxBackward& d, const CpuOpOptions& options) : SoftmaxOp(d.x, 3, options) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<SoftmaxBackward>(pointers);
    with_element_type(tensors_[0].type, [&]<typename T>() {
      const T *const dy = static_cast<const T*>(args.dy), *const y = static_cast<const T*>(args.y);
      T* const dx = static_cast<T*>(args.dx);
      for_runs([&](std::int64_t at, std::int64_t length, int) {
        by_runs() ? one_run(dy + at, y + at, dx + at, length) : one_pixel(dy, y, dx, at);
      });
    });
  }

 private:
  template <typename T>
  void one_run(const T* dy, const T* y, T* dx, std::int64_t length) const {
    float sums[kRun] = {};
    for (std::int64_t c = 0, at = 0; c < view_.c; ++c, at += view_.stride_block)
      for (std::int64_t i = 0; i < length; ++i) sums[i] += to_float(dy[at + i]) * to_float(y[at + i]);
    for (std::int64_t c = 0, at = 0; c < view_.c; ++c, at += view_.stride_block)
      for (std::int64_t i = 0; i < length; ++i)
        dx[at + i] = from_float<T>(to_float(y[at + i]) * (to_float(dy[at + i]) - sums[i]));
  }

  template <typename T>
  void one_pixel(const T* dy, const T* y, T* dx, std::int64_t at) const {
    float sum = 0;
    for_blocks(at, [&](std::int64_t from, std::int64_t channels, std::int64_t) {
#pragma omp simd reduction(+ : sum)
      for (std::int64_t c = 0; c < channels; ++c) sum += to_float(dy[from + c]) * to_float(y[from + c]);
    });
    for_blocks(at, [&](std::int64_t to, std::int64_t channels, std::int64_t) {
      for (std::int64_t c = 0; c < channels; ++c)
        dx[to + c] = from_float<T>(to_float(y[to + c]) * (to_float(dy[to + c]) - sum));
      std::fill(dx + to + channels, dx + to + view_.block, T{});
    });
  }
};

}  // namespace

std::unique_ptr<HostOp> make(const ChannelwiseForward& d, const CpuOpOptions& options) {
  return std::make_unique<ChannelwiseForwardOp>(d, options);
}
std::unique_ptr<HostOp> make(const ChannelwiseBackward& d, const CpuOpOptions& options) {
  return std::make_unique<ChannelwiseBackwardOp>(d, options);
}
std::unique_ptr<HostOp> make(const SoftmaxForward& d, const CpuOpOptions& options) {
  return std::make_unique<SoftmaxForwardOp>(d, options);
}
std::unique_ptr<HostOp> make(const SoftmaxBackward& d, const CpuOpOptions& options) {
  return std::make_unique<SoftmaxBackwardOp>(d, options);
}

}  // namespace dp::kernels
