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

class UpdateDirectionOp final : public ReferenceOp<UpdateDirection> {
 public:
  explicit UpdateDirectionOp(const UpdateDirection& desc) : ReferenceOp(desc, {}) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<UpdateDirection>(pointers);
    const UpdateInputs& inputs = static_cast<const StepInputs*>(args.inputs)->update;
    const auto& results = *static_cast<const StepResults*>(args.results);
    if (results.skip) return;
    const auto* groups = static_cast<const std::uint8_t*>(args.groups);
    const auto* segments = static_cast<const TensorSegment*>(args.segments);
    const double *weights = f64(args.weights), *gradients = f64(args.gradients);
    double *first = f64(args.state), *second = first + desc_.stride, *direction = f64(args.direction);
    with_tensor_work(desc_.kind, [&]<typename Own>() {
      for (std::int64_t s = 0; s < desc_.count; ++s) {
        const TensorSegment& segment = segments[s];
        const SegmentRule<Own, double> rule(inputs, inputs.groups[groups ? groups[segment.begin / kGroupElements] : 0],
                                            segment.shape, 1, results.clip, number_of(inputs, results));
        double sums[2] = {};
        for (std::int64_t i = segment.begin; i < segment.begin + segment.count; ++i) {
          direction[i] = rule.direction(gradients[i], weights[i], first[i], second[i]);
          sums[0] += weights[i] * weights[i];
          sums[1] += direction[i] * direction[i];
        }
        if (kTensorWork<Own> == TensorWork::trust_ratio) std::copy_n(sums, 2, f64(args.partials) + 2 * s);
      }
    });
  }
};

class TrustRatiosOp final : public ReferenceOp<TrustRatios> {
 public:
  explicit TrustRatiosOp(const TrustRatios& desc) : ReferenceOp(desc, {}) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<TrustRatios>(pointers);
    trust_ratios(f64(args.partials), static_cast<const std::int64_t*>(args.first), f64(args.ratios), desc_.tensors);
  }
};

class ApplyDirectionOp final : public ReferenceOp<ApplyDirection> {
 public:
  explicit ApplyDirectionOp(const ApplyDirection& desc) : ReferenceOp(desc, {}) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<ApplyDirection>(pointers);
    const UpdateInputs& inputs = static_cast<const StepInputs*>(args.inputs)->update;
    auto& results = *static_cast<StepResults*>(args.results);
    if (results.skip) return;
    const auto* groups = static_cast<const std::uint8_t*>(args.groups);
    const auto* segments = static_cast<const TensorSegment*>(args.segments);
    const double *direction = f64(args.direction), *ratios = f64(args.ratios);
    double* weights = f64(args.weights);
    with_tensor_work(desc_.kind, [&]<typename Own>() {
      for (std::int64_t s = 0; s < desc_.count; ++s) {
        const TensorSegment& segment = segments[s];
        const double ratio = kTensorWork<Own> == TensorWork::trust_ratio ? ratios[segment.tensor] : 1;
        const SegmentRule<Own, double> rule(inputs, inputs.groups[groups ? groups[segment.begin / kGroupElements] : 0],
                                            segment.shape, ratio, results.clip, number_of(inputs, results));
        for (std::int64_t i = segment.begin; i < segment.begin + segment.count; ++i) {
          weights[i] = rule.applied(weights[i], direction[i]);
          if (!std::isfinite(weights[i])) results.grad_nonfinite = 1;
          if (desc_.copy) f64(args.copy)[i] = rounded(weights[i], *desc_.copy);
        }
      }
    });
  }
};

class OrthogonalizeOp final : public ReferenceOp<Orthogonalize> {
 public:
  explicit OrthogonalizeOp(const Orthogonalize& desc) : ReferenceOp(desc, {}) {}
  std::size_t workspace_bytes() const override {
    return static_cast<std::size_t>(2 * desc_.side() * desc_.side() + desc_.rows * desc_.columns) * sizeof(double);
  }

  void execute(std::span<void* const> pointers, void* workspace) override {
    double* const x = f64(args_of<Orthogonalize>(pointers).x);
    const std::int64_t rows = desc_.rows, columns = desc_.columns, side = desc_.side(), count = rows * columns;
    double *const gram = f64(workspace), *const polynomial = gram + side * side,
                  *const product = polynomial + side * side;
    double squares = 0;
    for (std::int64_t i = 0; i < count; ++i) squares += x[i] * x[i];
    const double norm = std::max(std::sqrt(squares), kLeastMatrixNorm);
    for (std::int64_t i = 0; i < count; ++i) x[i] /= norm;
    const bool wide = rows <= columns;
    const auto [a, b, c] = kNewtonSchulz;
    for (int step = 0; step < kNewtonSchulzSteps; ++step) {
      wide ? multiply(x, columns, 1, x, 1, columns, gram, side, side, columns)
           : multiply(x, 1, columns, x, columns, 1, gram, side, side, rows);
      multiply(gram, side, 1, gram, side, 1, polynomial, side, side, side);
      for (std::int64_t i = 0; i < side * side; ++i) polynomial[i] = b * gram[i] + c * polynomial[i];
      wide ? multiply(polynomial, side, 1, x, columns, 1, product, rows, columns, side)
           : multiply(x, columns, 1, polynomial, side, 1, product, rows, columns, side);
      for (std::int64_t i = 0; i < count; ++i) x[i] = a * x[i] + product[i];
    }
  }

 private:
  // result (rows, columns) = p q. p(row, k) = p[row * p_row + k * p_k], q(k, column) = q[k * q_k + column * q_column].
  static void multiply(const double* p, std::int64_t p_row, std::int64_t p_k, const double* q, std::int64_t q_k,
                       std::int64_t q_column, double* result, std::int64_t rows, std::int64_t columns,
                       std::int64_t depth) {
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t column = 0; column < columns; ++column) {
        double sum = 0;
        for (std::int64_t k = 0; k < depth; ++k) sum += p[row * p_row + k * p_k] * q[k * q_k + column * q_column];
        result[row * columns + column] = sum;
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
std::unique_ptr<HostOp> make(const UpdateDirection& desc) { return std::make_unique<UpdateDirectionOp>(desc); }
std::unique_ptr<HostOp> make(const TrustRatios& desc) { return std::make_unique<TrustRatiosOp>(desc); }
std::unique_ptr<HostOp> make(const Orthogonalize& desc) { return std::make_unique<OrthogonalizeOp>(desc); }
std::unique_ptr<HostOp> make(const ApplyDirection& desc) { return std::make_unique<ApplyDirectionOp>(desc); }
std::unique_ptr<HostOp> make(const MovingAverage& desc) { return std::make_unique<MovingAverageOp>(desc); }
std::unique_ptr<HostOp> make(const GradNormPartials& desc) { return std::make_unique<GradNormPartialsOp>(desc); }
std::unique_ptr<HostOp> make(const GradNormFinish& desc) { return std::make_unique<GradNormFinishOp>(desc); }

}  // namespace dp::kernels::reference
