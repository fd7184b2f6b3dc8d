#include <cmath>

#include "kernels/device/reference/reference_op.h"
#include "kernels/op_args.h"

namespace dp::kernels::reference {
namespace {

class SoftsignForwardOp final : public ReferenceOp<SoftsignForward> {
 public:
  explicit SoftsignForwardOp(const SoftsignForward& desc) : ReferenceOp(desc, {desc.x}) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<SoftsignForward>(pointers);
    const double* x = f64(args.x);
    double* y = f64(args.y);
    for (std::int64_t i = 0; i < shape(0).numel(); ++i) y[i] = x[i] / (1 + std::abs(x[i]));
  }
};

class SoftsignBackwardOp final : public ReferenceOp<SoftsignBackward> {
 public:
  explicit SoftsignBackwardOp(const SoftsignBackward& desc) : ReferenceOp(desc, {desc.x}) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<SoftsignBackward>(pointers);
    const double *dy = f64(args.dy), *x = f64(args.x);
    double* dx = f64(args.dx);
    for (std::int64_t i = 0; i < shape(0).numel(); ++i) dx[i] = dy[i] / ((1 + std::abs(x[i])) * (1 + std::abs(x[i])));
  }
};

}  // namespace

std::unique_ptr<HostOp> make(const SoftsignForward& desc) { return std::make_unique<SoftsignForwardOp>(desc); }
std::unique_ptr<HostOp> make(const SoftsignBackward& desc) { return std::make_unique<SoftsignBackwardOp>(desc); }

}  // namespace dp::kernels::reference
