// Implements BatchNormFold for every blocked weight layout of oneDNN.
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/cpu/bfloat16/element.h"
#include "kernels/cpu/cpu_layout.h"
#include "kernels/cpu/cpu_op.h"
#include "kernels/cpu/dnnl_compat.h"
#include "kernels/cpu/parallel.h"
#include "kernels/op_args.h"

namespace dp::kernels {
namespace {

// Describes weights (O,I,kH,kW) as runs of contiguous elements. Element p of a run belongs to the output channel
// channel[p], counted from the first channel of the run.
struct Runs {
  std::vector<std::int64_t> channel{0};
  std::array<std::int64_t, 4> count{}, stride{};  // of the runs, along each axis
  std::int64_t channels = 1;                      // of a run

  explicit Runs(const TensorDesc& weights) {
    const dnnl_compat::Blocking b = dnnl_compat::blocking_of(desc_of(weights.layout));
    std::copy_n(b.padded.begin(), 4, count.begin());
    std::copy_n(b.strides.begin(), 4, stride.begin());
    for (std::size_t i = b.inner_sizes.size(); i-- > 0;) {
      const std::int64_t size = b.inner_sizes[i];
      count[static_cast<std::size_t>(b.inner_axes[i])] /= size;
      const std::int64_t step = b.inner_axes[i] == 0 ? std::exchange(channels, channels * size) : 0;
      const std::vector<std::int64_t> within = channel;
      for (std::int64_t j = 1; j < size; ++j)
        for (const std::int64_t c : within) channel.push_back(j * step + c);
    }
    const std::int64_t filter = count[1] * count[2] * count[3];
    if (b.inner_sizes.empty() && stride[0] == filter) {  // the filter of each channel is contiguous
      channel.assign(static_cast<std::size_t>(filter), 0);
      count = {count[0], 1, 1, 1};
    }
  }
  std::int64_t size() const { return count[0] * count[1] * count[2] * count[3]; }
  std::int64_t padded_channels() const { return count[0] * channels; }
};

class FoldOp : public HostOp {
 public:
  FoldOp(const BatchNormFold& d, const CpuOpOptions& options)
      : channels_(d.w.shape[0]), eps_(d.eps), weights_(resolved_plain(d.w)) {
    tensors_ = {resolved_plain(d.w)};
    threads_ = threads_for(options.threads, static_cast<std::int64_t>(tensors_[0].layout.bytes));
  }
  std::size_t workspace_bytes() const override {
    return static_cast<std::size_t>(weights_.padded_channels()) * sizeof(float);
  }
  std::string implementation() const override { return "own:runs"; }

  void execute(std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<BatchNormFold>(pointers);
    const auto number = [](const void* from, std::int64_t c) { return static_cast<const float*>(from)[c]; };
    float* const scales = static_cast<float*>(workspace);
    std::fill(scales + channels_, scales + weights_.padded_channels(), 0.0f);
    for (std::int64_t c = 0; c < channels_; ++c) {
      const double scale = number(args.weight, c) / std::sqrt(number(args.variance, c) + eps_);
      const double b = args.b != nullptr ? number(args.b, c) : 0;
      static_cast<float*>(args.folded_b)[c] =
          static_cast<float>(number(args.bias, c) + (b - number(args.mean, c)) * scale);
      scales[c] = static_cast<float>(scale);
    }
    with_element_type(tensors_[0].type, [&]<typename T>() {
      scale_runs(static_cast<const T*>(args.w), scales, static_cast<T*>(args.folded_w));
    });
  }

 private:
  template <typename T>
  void scale_runs(const T* w, const float* scales, T* to) const {
    parallel_ranges(threads_, weights_.size(), 1, [=, this](std::int64_t run, std::int64_t end) {
      const auto length = static_cast<std::int64_t>(weights_.channel.size());
      const std::int64_t* const channel = weights_.channel.data();
      for (; run < end; ++run) {
        std::int64_t rest = run, begin = 0;
        for (std::size_t axis = 3; axis > 0; rest /= weights_.count[axis--])
          begin += rest % weights_.count[axis] * weights_.stride[axis];
        begin += rest * weights_.stride[0];
        const float* const own = scales + rest * weights_.channels;
        for (std::int64_t i = 0; i < length; ++i)
          to[begin + i] = from_float<T>(to_float(w[begin + i]) * own[channel[i]]);
      }
    });
  }

  std::int64_t channels_;
  double eps_;
  Runs weights_;
  int threads_ = 1;
};

}  // namespace

std::unique_ptr<HostOp> make(const BatchNormFold& d, const CpuOpOptions& options) {
  return std::make_unique<FoldOp>(d, options);
}

}  // namespace dp::kernels
