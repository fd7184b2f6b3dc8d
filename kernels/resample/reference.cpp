// Resampling of images.
#include <algorithm>

#include "kernels/device/reference/reference_op.h"
#include "kernels/op_args.h"
#include "kernels/ops.h"

namespace dp::kernels::reference {
namespace {

template <typename Desc>
class ResampleOp : public ReferenceOp<Desc> {
 protected:
  ResampleOp(const Desc& desc, const TensorDesc& first, const TensorDesc& second, const Shape& x, const Shape& y)
      : ReferenceOp<Desc>(desc, {first, second}),
        planes_(x[0] * x[1]),
        rows_(resample_side(desc.how, x, y, 2, &HW::h)),
        cols_(resample_side(desc.how, x, y, 3, &HW::w)) {}

  // Calls visit(input index, output index, share) for each input cell in an output cell.
  template <typename Visit>
  void each_pair(const Visit& visit) const {
    for (std::int64_t plane = 0, y = 0; plane < planes_; ++plane)
      for (std::int32_t i = 0; i < rows_.output; ++i)
        for (std::int32_t j = 0; j < cols_.output; ++j, ++y) {
          const CellReads rows = rows_.reads(i), cols = cols_.reads(j);
          for (const std::int32_t r : {rows.first, rows.first + 1})
            for (const std::int32_t c : {cols.first, cols.first + 1}) {
              const double share = rows_.share(i, r) * cols_.share(j, c);
              if (share != 0) visit((plane * rows_.input + r) * cols_.input + c, y, share);
            }
        }
  }

  std::int64_t planes_;
  ResampleSide rows_, cols_;
};

class ResampleForwardOp final : public ResampleOp<ResampleForward> {
 public:
  explicit ResampleForwardOp(const ResampleForward& d) : ResampleOp(d, d.x, d.y, d.x.shape, d.y.shape) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<ResampleForward>(pointers);
    const double* x = f64(args.x);
    double* y = f64(args.y);
    std::fill_n(y, shape(1).numel(), 0.0);
    each_pair([&](std::int64_t input, std::int64_t output, double share) { y[output] += x[input] * share; });
  }
};

class ResampleBackwardOp final : public ResampleOp<ResampleBackward> {
 public:
  explicit ResampleBackwardOp(const ResampleBackward& d) : ResampleOp(d, d.dy, d.dx, d.dx.shape, d.dy.shape) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<ResampleBackward>(pointers);
    const double* dy = f64(args.dy);
    double* dx = f64(args.dx);
    std::fill_n(dx, shape(1).numel(), 0.0);
    each_pair([&](std::int64_t input, std::int64_t output, double share) { dx[input] += dy[output] * share; });
  }
};

}  // namespace

std::unique_ptr<HostOp> make(const ResampleForward& desc) { return std::make_unique<ResampleForwardOp>(desc); }
std::unique_ptr<HostOp> make(const ResampleBackward& desc) { return std::make_unique<ResampleBackwardOp>(desc); }

}  // namespace dp::kernels::reference
