#include <cmath>
#include <numbers>

#include "kernels/device/reference/reference_op.h"
#include "kernels/op_args.h"

namespace dp::kernels::reference {
namespace {

double below(double x) { return 0.5 * (1 + std::erf(x / std::numbers::sqrt2)); }  // probability of a smaller value
double density(double x) { return std::exp(-0.5 * x * x) * std::numbers::inv_sqrtpi / std::numbers::sqrt2; }

class GeluForwardOp final : public ReferenceOp<GeluForward> {
 public:
  explicit GeluForwardOp(const GeluForward& desc) : ReferenceOp(desc, {desc.x}) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<GeluForward>(pointers);
    const double* x = f64(args.x);
    double* y = f64(args.y);
    for (std::int64_t i = 0; i < shape(0).numel(); ++i) y[i] = x[i] * below(x[i]);
  }
};

class GeluBackwardOp final : public ReferenceOp<GeluBackward> {
 public:
  explicit GeluBackwardOp(const GeluBackward& desc) : ReferenceOp(desc, {desc.x}) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<GeluBackward>(pointers);
    const double *dy = f64(args.dy), *x = f64(args.x);
    double* dx = f64(args.dx);
    for (std::int64_t i = 0; i < shape(0).numel(); ++i) dx[i] = dy[i] * (below(x[i]) + x[i] * density(x[i]));
  }
};

}  // namespace

std::unique_ptr<HostOp> make(const GeluForward& desc) { return std::make_unique<GeluForwardOp>(desc); }
std::unique_ptr<HostOp> make(const GeluBackward& desc) { return std::make_unique<GeluBackwardOp>(desc); }

}  // namespace dp::kernels::reference
