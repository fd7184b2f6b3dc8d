// BatchNormForward and BatchNormBackward: a few coefficients per channel, then one pass over memory. The pass subtracts
// the mean rounded to float from x; the offset corrects the rounding. Hence a large mean loses no precision.
#include <memory>

#include "kernels/cpu/bfloat16/element.h"
#include "kernels/cpu/cpu_op.h"
#include "kernels/cpu/norm/batch_norm_plane.h"
#include "kernels/op_args.h"

namespace dp::kernels {
namespace {

class NormOp : public HostOp {
 public:
  NormOp(const TensorDesc& x, int coefficients, const CpuOpOptions& options)
      : view_(view_of(resolved_plain(x))), plane_{view_.h * view_.w, view_.block} {
    tensors_ = {resolved_plain(x)};
    channels_ = view_.blocks * view_.block;
    workspace_bytes_ = static_cast<std::size_t>(coefficients * channels_) * sizeof(float);
    threads_ = threads_for(options.threads, static_cast<std::int64_t>(tensors_[0].layout.bytes) * 2);
  }
  std::size_t workspace_bytes() const override { return workspace_bytes_; }
  std::string implementation() const override { return "own:simd"; }

 protected:
  // Calls body(first element, first channel) for each plane.
  template <typename Body>
  void for_planes(const Body& body) const {
    parallel_ranges(threads_, view_.n * view_.blocks, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        body(view_.at(i / view_.blocks, i % view_.blocks), i % view_.blocks * view_.block);
    });
  }

  ActivationView view_;
  NormPlane plane_;
  std::int64_t channels_;  // padding included: its coefficients are zero
  int threads_ = 1;

 private:
  std::size_t workspace_bytes_;
};

class ForwardOp : public NormOp {
 public:
  ForwardOp(const BatchNormForward& d, const CpuOpOptions& options)
      : NormOp(d.x, 3, options), relu_(d.relu), add_(d.add) {}

  void execute(std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<BatchNormForward>(pointers);
    const double* stats = static_cast<const double*>(args.stats);
    const float *weight = static_cast<const float*>(args.weight), *bias = static_cast<const float*>(args.bias);
    float *shift = static_cast<float*>(workspace), *scale = shift + channels_, *offset = scale + channels_;
    for (std::int64_t c = 0; c < view_.c; ++c) {
      const double mean = stats[1 + c], slope = weight[c] * stats[1 + view_.c + c];
      shift[c] = static_cast<float>(mean);
      scale[c] = static_cast<float>(slope);
      offset[c] = static_cast<float>(bias[c] - (mean - static_cast<double>(shift[c])) * slope);
    }
    for (std::int64_t c = view_.c; c < channels_; ++c) shift[c] = scale[c] = offset[c] = 0;
    with_element_type(tensors_[0].type, [&]<typename T>() {
      const T *x = static_cast<const T*>(args.x), *addend = add_ ? static_cast<const T*>(args.addend) : nullptr;
      T* const y = static_cast<T*>(args.y);
      for_planes([&](std::int64_t at, std::int64_t c) {
        normalise(plane_, relu_, {shift + c, scale + c, offset + c}, x + at, addend == nullptr ? nullptr : addend + at,
                  y + at);
      });
    });
  }

 private:
  bool relu_, add_;
};

class BackwardOp : public NormOp {
 public:
  BackwardOp(const BatchNormBackward& d, const CpuOpOptions& options)
      : NormOp(d.x, 4, options), parts_(d.parts), relu_(d.relu) {}

  void execute(std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<BatchNormBackward>(pointers);
    const double* stats = static_cast<const double*>(args.stats);
    const float* weight = static_cast<const float*>(args.weight);
    const double* sums = static_cast<const double*>(args.sums);
    float* shift = static_cast<float*>(workspace);
    float *scale = shift + channels_, *slope = scale + channels_, *offset = slope + channels_;
    const double share = stats[0] > 0 ? 1 / stats[0] : 0;  // 0: running statistics, which do not depend on x
    for (std::int64_t c = 0; c < view_.c; ++c) {
      double sum = 0, product = 0;
      for (int part = 0; part < parts_; ++part) {
        sum += sums[part * 2 * view_.c + c];
        product += sums[part * 2 * view_.c + view_.c + c];
      }
      const double mean = stats[1 + c], inv_std = stats[1 + view_.c + c], factor = weight[c] * inv_std;
      const double tilt = -factor * inv_std * product * share;
      shift[c] = static_cast<float>(mean);
      scale[c] = static_cast<float>(factor);
      slope[c] = static_cast<float>(tilt);
      offset[c] = static_cast<float>(-factor * sum * share - (mean - static_cast<double>(shift[c])) * tilt);
    }
    for (std::int64_t c = view_.c; c < channels_; ++c) shift[c] = scale[c] = slope[c] = offset[c] = 0;
    with_element_type(tensors_[0].type, [&]<typename T>() {
      const T *dy = static_cast<const T*>(args.dz), *x = static_cast<const T*>(args.x),
              *y = relu_ ? static_cast<const T*>(args.y) : nullptr;
      T* const dx = static_cast<T*>(args.dx);
      for_planes([&](std::int64_t at, std::int64_t c) {
        normalise_gradient(plane_, {shift + c, scale + c, slope + c, offset + c}, dy + at, x + at,
                           y == nullptr ? nullptr : y + at, dx + at);
      });
    });
  }

 private:
  int parts_;
  bool relu_;
};

}  // namespace

std::unique_ptr<HostOp> make(const BatchNormForward& d, const CpuOpOptions& options) {
  return std::make_unique<ForwardOp>(d, options);
}
std::unique_ptr<HostOp> make(const BatchNormBackward& d, const CpuOpOptions& options) {
  return std::make_unique<BackwardOp>(d, options);
}

}  // namespace dp::kernels
