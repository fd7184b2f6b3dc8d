#include <algorithm>
#include <cmath>

#include "kernels/device/reference/reference_op.h"
#include "kernels/op_args.h"
#include "kernels/step_state.h"

namespace dp::kernels::reference {
namespace {

class OptimizerOp final : public ReferenceOp<OptimizerUpdate> {
 public:
  explicit OptimizerOp(const OptimizerUpdate& desc) : ReferenceOp(desc, {}) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<OptimizerUpdate>(pointers);
    const UpdateInputs& inputs = static_cast<const StepInputs*>(args.inputs)->update;
    auto& results = *static_cast<StepResults*>(args.results);
    if (results.skip) return;
    const auto* groups = static_cast<const std::uint8_t*>(args.groups);
    const double* gradients = f64(args.gradients);
    double *weights = f64(args.weights), *state = args.state ? f64(args.state) : nullptr;
    with_update(desc_.kind, [&]<typename Own, unsigned kSlots>() {
      double* const slots[kMaxSlots] = {slot_of<kSlots, 0>(state, desc_.stride),
                                        slot_of<kSlots, 1>(state, desc_.stride),
                                        slot_of<kSlots, 2>(state, desc_.stride)};
      for (std::int64_t i = 0; i < desc_.count; ++i) {
        const Element<Own, double> element(inputs, inputs.groups[groups ? groups[i / kGroupElements] : 0], results.clip,
                                           number_of(inputs, results));
        double held[kMaxSlots] = {};
        for (int slot = 0; slot < kMaxSlots; ++slot)
          if (slots[slot]) held[slot] = slots[slot][i];
        weights[i] = element(gradients[i], weights[i], held[0], held[1], held[2]);
        for (int slot = 0; slot < kMaxSlots; ++slot)
          if (slots[slot]) slots[slot][i] = held[slot];
        if (!std::isfinite(weights[i])) results.grad_nonfinite = 1;
        if (desc_.copy) f64(args.copy)[i] = rounded(weights[i], *desc_.copy);
      }
    });
  }
};

class MovingAverageOp final : public ReferenceOp<MovingAverage> {
 public:
  explicit MovingAverageOp(const MovingAverage& desc) : ReferenceOp(desc, {}) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<MovingAverage>(pointers);
    const double* x = f64(args.x);
    double* average = f64(args.average);
    const double share = static_cast<const StepInputs*>(args.inputs)->average_share;
    for (std::int64_t i = 0; i < desc_.count; ++i) average[i] += share * (x[i] - average[i]);
  }
};

class GradNormPartialsOp final : public ReferenceOp<GradNormPartials> {
 public:
  explicit GradNormPartialsOp(const GradNormPartials& desc) : ReferenceOp(desc, {}) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<GradNormPartials>(pointers);
    const double* x = f64(args.x);
    double* partials = f64(args.partials);
    for (std::int64_t begin = 0; begin < desc_.count; begin += kNormBlock) {
      double sum = 0;
      for (std::int64_t i = begin; i < std::min(desc_.count, begin + kNormBlock); ++i) sum += x[i] * x[i];
      partials[begin / kNormBlock] = sum;
    }
  }
};

class GradNormFinishOp final : public ReferenceOp<GradNormFinish> {
 public:
  explicit GradNormFinishOp(const GradNormFinish& desc) : ReferenceOp(desc, {}) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<GradNormFinish>(pointers);
    const double* partials = f64(args.partials);
    const auto& inputs = *static_cast<const StepInputs*>(args.inputs);
    auto& results = *static_cast<StepResults*>(args.results);
    double sum = 0;
    for (std::int64_t i = 0; i < desc_.blocks; ++i) sum += partials[i];
    const bool finite = std::isfinite(sum);
    auto* const scaler = desc_.scaling ? static_cast<LossScaler*>(args.scaler) : nullptr;
    const double scale = scaler ? static_cast<double>(scaler->scale) : 1;
    results.grad_norm = std::sqrt(sum) / scale;
    double clip = 1;
    if (finite && inputs.max_norm > 0)
      clip = std::min(1.0, static_cast<double>(inputs.max_norm) / (results.grad_norm + 1e-6));
    results.clip = static_cast<float>(clip / scale);
    results.skip = !finite && (scaler || inputs.skip_nonfinite);
    results.skipped_steps += results.skip;
    if (scaler)
      adapt(*scaler, finite);
    else if (!finite)
      results.grad_nonfinite = 1;
  }

 private:
  void adapt(LossScaler& scaler, bool finite) const {
    scaler.last_scale = scaler.scale;
    scaler.good_steps = finite ? scaler.good_steps + 1 : 0;
    const bool grows = scaler.good_steps == desc_.scaling->interval;
    if (grows) scaler.good_steps = 0;
    const float next = scaler.scale * (!finite ? desc_.scaling->backoff : grows ? desc_.scaling->growth : 1.0f);
    if (std::isnormal(next)) scaler.scale = next;
  }
};

}  // namespace

std::unique_ptr<HostOp> make(const OptimizerUpdate& desc) { return std::make_unique<OptimizerOp>(desc); }
std::unique_ptr<HostOp> make(const MovingAverage& desc) { return std::make_unique<MovingAverageOp>(desc); }
std::unique_ptr<HostOp> make(const GradNormPartials& desc) { return std::make_unique<GradNormPartialsOp>(desc); }
std::unique_ptr<HostOp> make(const GradNormFinish& desc) { return std::make_unique<GradNormFinishOp>(desc); }

}  // namespace dp::kernels::reference
