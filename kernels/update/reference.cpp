#include <algorithm>
#include <cmath>

#include "kernels/device/reference/reference_op.h"
#include "kernels/op_args.h"
#include "kernels/step_state.h"

namespace dp::kernels::reference {
namespace {

// Returns the new weight. `velocity` is null without momentum.
double sgd(const UpdateInputs::Group& group, const SgdConstants& constants, double gradient, double weight,
           double* velocity) {
  const double lr = group.lr, momentum = constants.momentum;
  gradient += static_cast<double>(group.weight_decay) * weight;
  if (!velocity) return weight - lr * gradient;
  *velocity = momentum * *velocity + gradient;
  return weight - lr * (constants.nesterov ? gradient + momentum * *velocity : *velocity);
}

double adamw(const UpdateInputs::Group& group, const AdamWConstants& constants, double gradient, double weight,
             double& mean, double& square, double number) {
  const double lr = group.lr, beta1 = constants.beta1, beta2 = constants.beta2;
  mean = beta1 * mean + (1 - beta1) * gradient;
  square = beta2 * square + (1 - beta2) * gradient * gradient;
  const double corrected = mean / (1 - std::pow(beta1, number));
  const double root = std::sqrt(square / (1 - std::pow(beta2, number)));
  return weight - lr * static_cast<double>(group.weight_decay) * weight -
         lr * corrected / (root + static_cast<double>(constants.eps));
}

class OptimizerOp final : public ReferenceOp<OptimizerUpdate> {
 public:
  explicit OptimizerOp(const OptimizerUpdate& desc) : ReferenceOp(desc, {}) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<OptimizerUpdate>(pointers);
    double* weights = f64(args.weights);
    const double* gradients = f64(args.gradients);
    const auto* groups = static_cast<const std::uint8_t*>(args.groups);
    const UpdateInputs& inputs = static_cast<const StepInputs*>(args.inputs)->update;
    auto& results = *static_cast<StepResults*>(args.results);
    if (results.skip) return;
    for (std::int64_t i = 0; i < desc_.count; ++i) {
      const UpdateInputs::Group& group = inputs.groups[groups ? groups[i / kGroupElements] : 0];
      const double gradient = static_cast<double>(results.clip) * gradients[i];
      double* const first = args.first_state ? f64(args.first_state) + i : nullptr;
      switch (desc_.rule) {
        case UpdateRule::sgd: weights[i] = sgd(group, inputs.constants.sgd, gradient, weights[i], first); break;
        case UpdateRule::adamw:
          weights[i] = adamw(group, inputs.constants.adamw, gradient, weights[i], *first, f64(args.second_state)[i],
                             static_cast<double>(number_of(inputs, results)));
          break;
      }
      if (!std::isfinite(weights[i])) results.grad_nonfinite = 1;
      if (desc_.copy) f64(args.copy)[i] = rounded(weights[i], *desc_.copy);
    }
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
