// Optimizers, parameter groups and learning rate schedules.
//
// An optimizer is a struct: its name, its state, its options, and its rule, the update of one element. Every backend
// compiles the rule: the reference in double, CPUs and GPUs in float, without fast-math and without contracting a*b+c,
// so that each new value is the same everywhere. A new optimizer is a struct here with its place in Optimizer, and
// figures of another implementation in tests/golden/golden_optimizers.py. Lamb and Muon also compute with whole tensors
// (TensorWork). All replicas get the same norms and products of matrices; another kind of device computes other last
// bits.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "dp/tensor.h"

namespace dp {

// A slot of state: a tensor for each parameter, zero at first, with PyTorch's name. An optional one is left out if the
// options do not use it: the rule then reads 0, and what it writes there is lost.
struct OptimizerSlot {
  const char* name;
  bool optional = false;
};

// The options that rules read, by the names that they have in every optimizer. 0: the optimizer does not have it.
struct RuleOptions {
  double momentum = 0, nesterov = 0, beta1 = 0, beta2 = 0, eps = 0, alpha = 0, centered = 0, match_rms = 0;

  template <typename Own>
  static constexpr RuleOptions of(const Own& own) {
    RuleOptions options;
    if constexpr (requires { own.momentum; }) options.momentum = static_cast<double>(own.momentum);
    if constexpr (requires { own.nesterov; }) options.nesterov = own.nesterov ? 1 : 0;
    if constexpr (requires { own.beta1; }) options.beta1 = own.beta1, options.beta2 = own.beta2;
    if constexpr (requires { own.eps; }) options.eps = static_cast<double>(own.eps);
    if constexpr (requires { own.alpha; }) options.alpha = own.alpha;
    if constexpr (requires { own.centered; }) options.centered = own.centered ? 1 : 0;
    if constexpr (requires { own.match_rms; }) options.match_rms = own.match_rms ? 1 : 0;
    return options;
  }
};

// What an optimizer computes with whole tensors between two passes over the elements. The first pass updates the slots
// and computes a direction u, the second one the weights: w = w*keep - lr*factor*u. keep: 1 - lr*weight_decay with
// kDecoupledDecay, else 1. The rule then has direction() and factor() instead of operator().
enum class TensorWork {
  none,         // the rule computes new weights in one pass
  trust_ratio,  // the norms of the weights and of u, whose quotient is passed to factor()
  orthogonal,   // u of a matrix is orthogonalised (kernels::Orthogonalize)
};
// The tensor of an element. With TensorWork::orthogonal: rows and columns of a matrix; 0 for other parameters.
struct TensorOfElement {
  std::int32_t rows = 0, columns = 0;
};

// torch.optim.SGD: g += weight_decay*w; m = momentum*m + g; w -= lr*(nesterov ? g + momentum*m : m).
struct Sgd {
  static constexpr const char* kName = "sgd";
  static constexpr OptimizerSlot kSlots[] = {{"momentum_buffer", /*optional=*/true}};
  // Whether weight decay multiplies the weight by 1 - lr*weight_decay. If not, it is added to the gradient.
  static constexpr bool kDecoupledDecay = false;

  float lr = 0.1f;
  float momentum = 0;
  bool nesterov = false;
  float weight_decay = 0;

  // Whether the optional slot of this index is used.
  constexpr bool uses(std::size_t) const { return momentum != 0; }

  // Made for one update of one parameter group. `rate`: the learning rate of the group. `update`: the number of this
  // update, from 1; skipped steps do not count.
  template <typename T>
  struct Rule {
    T lr, momentum;
    bool nesterov;

    constexpr Rule(const RuleOptions& options, double rate, std::int64_t /*update*/)
        : lr(T(rate)), momentum(T(options.momentum)), nesterov(options.nesterov != 0) {}
    // Returns the new weight and updates the slots. The gradient is clipped, and weight decay is applied.
    constexpr T operator()(T gradient, T weight, T& velocity) const {
      velocity = momentum * velocity + gradient;
      return weight - lr * (nesterov ? gradient + momentum * velocity : velocity);
    }
  };
};

// m = beta1*m + (1-beta1)*g; v = beta2*v + (1-beta2)*g*g; w -= lr * (m/(1-beta1^t)) / (sqrt(v/(1-beta2^t)) + eps) in
// update t.
template <typename T>
struct AdamRule {
  T keep1, share1, keep2, share2, step, root2, eps;

  constexpr AdamRule(const RuleOptions& options, double rate, std::int64_t update)
      : keep1(T(options.beta1)),
        share1(T(1 - options.beta1)),
        keep2(T(options.beta2)),
        share2(T(1 - options.beta2)),
        step(T(rate / (1 - power(options.beta1, update)))),
        root2(T(std::sqrt(1 - power(options.beta2, update)))),
        eps(T(options.eps)) {}
  constexpr T operator()(T gradient, T weight, T& mean, T& square) const {
    return weight - direction(gradient, mean, square);
  }
  constexpr T direction(T gradient, T& mean, T& square) const {
    mean = keep1 * mean + share1 * gradient;
    square = keep2 * square + share2 * gradient * gradient;
    return step * (mean / (std::sqrt(square) / root2 + eps));
  }

 private:
  // The same on every device: multiplications in one order.
  static constexpr double power(double base, std::int64_t exponent) {
    double result = 1;
    for (; exponent > 0; exponent /= 2, base *= base)
      if (exponent % 2 == 1) result *= base;
    return result;
  }
};

// torch.optim.AdamW: AdamRule after w *= 1 - lr*weight_decay.
struct AdamW {
  static constexpr const char* kName = "adamw";
  static constexpr OptimizerSlot kSlots[] = {{"exp_avg"}, {"exp_avg_sq"}};
  static constexpr bool kDecoupledDecay = true;

  float lr = 1e-3f;
  double beta1 = 0.9, beta2 = 0.999;
  float eps = 1e-8f;
  float weight_decay = 1e-2f;

  template <typename T>
  using Rule = AdamRule<T>;
};

// Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms"), after w *= 1 - lr*weight_decay:
// w -= lr * sign(beta1*m + (1-beta1)*g); m = beta2*m + (1-beta2)*g.
struct Lion {
  static constexpr const char* kName = "lion";
  static constexpr OptimizerSlot kSlots[] = {{"exp_avg"}};
  static constexpr bool kDecoupledDecay = true;

  float lr = 1e-4f;
  double beta1 = 0.9, beta2 = 0.99;
  float weight_decay = 0;

  template <typename T>
  struct Rule {
    T lr, keep1, share1, keep2, share2;

    constexpr Rule(const RuleOptions& options, double rate, std::int64_t /*update*/)
        : lr(T(rate)),
          keep1(T(options.beta1)),
          share1(T(1 - options.beta1)),
          keep2(T(options.beta2)),
          share2(T(1 - options.beta2)) {}
    constexpr T operator()(T gradient, T weight, T& mean) const {
      const T blend = keep1 * mean + share1 * gradient;
      mean = keep2 * mean + share2 * gradient;
      const T sign = blend > 0 ? T(1) : blend < 0 ? T(-1) : T(0);
      return weight - lr * (sign + 0 * blend);  // NaN if the gradient is not finite: the sign alone would hide that
    }
  };
};

// torch.optim.Adam: AdamRule after g += weight_decay*w.
struct Adam {
  static constexpr const char* kName = "adam";
  static constexpr OptimizerSlot kSlots[] = {{"exp_avg"}, {"exp_avg_sq"}};
  static constexpr bool kDecoupledDecay = false;

  float lr = 1e-3f;
  double beta1 = 0.9, beta2 = 0.999;
  float eps = 1e-8f;
  float weight_decay = 0;

  template <typename T>
  using Rule = AdamRule<T>;
};

// torch.optim.RMSprop, after g += weight_decay*w: v = alpha*v + (1-alpha)*g*g; m = alpha*m + (1-alpha)*g;
// b = momentum*b + g / (sqrt(centered ? v - m*m : v) + eps); w -= lr*b.
struct RmsProp {
  static constexpr const char* kName = "rmsprop";
  static constexpr OptimizerSlot kSlots[] = {
      {"square_avg"}, {"momentum_buffer", /*optional=*/true}, {"grad_avg", /*optional=*/true}};
  static constexpr bool kDecoupledDecay = false;

  float lr = 1e-2f;
  double alpha = 0.99;
  float eps = 1e-8f;
  float momentum = 0;
  bool centered = false;
  float weight_decay = 0;

  constexpr bool uses(std::size_t slot) const { return slot == 1 ? momentum != 0 : centered; }

  template <typename T>
  struct Rule {
    T lr, keep, share, eps, momentum;
    bool centered;

    constexpr Rule(const RuleOptions& options, double rate, std::int64_t /*update*/)
        : lr(T(rate)),
          keep(T(options.alpha)),
          share(T(1 - options.alpha)),
          eps(T(options.eps)),
          momentum(T(options.momentum)),
          centered(options.centered != 0) {}
    constexpr T operator()(T gradient, T weight, T& square, T& velocity, T& mean) const {
      square = keep * square + share * gradient * gradient;
      mean = keep * mean + share * gradient;
      const T variance = centered ? square - mean * mean : square;
      const T root = std::sqrt(variance < 0 ? T(0) : variance);  // rounding can make it negative
      velocity = momentum * velocity + gradient / (root + eps);
      return weight - lr * velocity;
    }
  };
};

// LAMB (You et al. 2019, "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes"), as in timm; for
// its max_grad_norm set DataParallelOptions::clip_grad_norm. u = (m/(1-beta1^t)) / (sqrt(v/(1-beta2^t)) + eps) +
// weight_decay*w, with m and v of Adam; w -= lr * ratio * u. ratio: norm(w) / norm(u) over the parameter's tensor; 1 if
// a norm is 0, or if the parameter has no weight decay.
struct Lamb {
  static constexpr const char* kName = "lamb";
  static constexpr OptimizerSlot kSlots[] = {{"exp_avg"}, {"exp_avg_sq"}};
  static constexpr bool kDecoupledDecay = false;
  static constexpr TensorWork kTensorWork = TensorWork::trust_ratio;

  float lr = 1e-3f;
  double beta1 = 0.9, beta2 = 0.999;
  float eps = 1e-6f;
  float weight_decay = 1e-2f;

  template <typename T>
  struct Rule {
    AdamRule<T> adam;

    constexpr Rule(const RuleOptions& options, std::int64_t update) : adam(options, 1, update) {}
    // The gradient is clipped. Updates the slots.
    constexpr T direction(T gradient, T weight, T decay, TensorOfElement, T& mean, T& square) const {
      return adam.direction(gradient, mean, square) + decay * weight;
    }
    static constexpr double factor(const RuleOptions&, double decay, double ratio, TensorOfElement) {
      return decay != 0 ? ratio : 1;
    }
  };
};

// Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon) as torch.optim.Muon, after
// w *= 1 - lr*weight_decay. Of matrices: m = momentum*m + (1-momentum)*g; w -= lr*factor * O(nesterov ?
// momentum*m + (1-momentum)*g : m). O: five Newton-Schulz iterations, see kernels::Orthogonalize; in float32, where
// PyTorch uses bfloat16. A matrix is a parameter of two or more dimensions, (first dimension, product of the others),
// with more than one column: weights of convolutions and linear layers, the classifier's too. All other parameters
// are updated as by AdamW, with the same learning rate.
struct Muon {
  static constexpr const char* kName = "muon";
  // exp_avg: m of matrices, Adam's of others. exp_avg_sq: 0 for matrices.
  static constexpr OptimizerSlot kSlots[] = {{"exp_avg"}, {"exp_avg_sq"}};
  static constexpr bool kDecoupledDecay = true;
  static constexpr TensorWork kTensorWork = TensorWork::orthogonal;

  float lr = 1e-3f;
  float momentum = 0.95f;
  bool nesterov = true;
  // The factor of (rows, columns). true: 0.2*sqrt(max(rows, columns)), PyTorch's "match_rms_adamw", with which one
  // learning rate fits matrices and other parameters. false: sqrt(max(1, rows/columns)), PyTorch's "original".
  bool match_rms = true;
  double beta1 = 0.9, beta2 = 0.999;
  float eps = 1e-8f;
  float weight_decay = 0.1f;

  template <typename T>
  struct Rule {
    AdamRule<T> adam;
    T keep, share;
    bool nesterov;

    constexpr Rule(const RuleOptions& options, std::int64_t update)
        : adam(options, 1, update),
          keep(T(options.momentum)),
          share(T(1 - options.momentum)),
          nesterov(options.nesterov != 0) {}
    constexpr T direction(T gradient, T /*weight*/, T /*decay*/, TensorOfElement tensor, T& mean, T& square) const {
      if (tensor.rows == 0) return adam.direction(gradient, mean, square);
      mean = keep * mean + share * gradient;
      return nesterov ? keep * mean + share * gradient : mean;
    }
    static constexpr double factor(const RuleOptions& options, double /*decay*/, double /*ratio*/,
                                   TensorOfElement tensor) {
      if (tensor.rows == 0) return 1;
      const double rows = tensor.rows, columns = tensor.columns;
      if (options.match_rms != 0) return 0.2 * std::sqrt(rows > columns ? rows : columns);
      return rows > columns ? std::sqrt(rows / columns) : 1;
    }
  };
};

// Every alternative has `lr` and `weight_decay`.
using Optimizer = std::variant<Sgd, AdamW, Lion, Adam, RmsProp, Lamb, Muon>;

std::string_view name_of(const Optimizer& optimizer);  // kName: "sgd", "adamw"
float& learning_rate(Optimizer& optimizer);
float learning_rate(const Optimizer& optimizer);

// Parameters that an optimizer treats differently from the others. The first group that a parameter fits counts.
struct ParameterGroup {
  std::string pattern = "*";            // of parameter names, with the shell's *, ? and [...]
  bool vectors = false;                 // of these, only biases and normalisation: parameters of one dimension
  float lr_factor = 1;                  // times the optimizer's learning rate; >= 0
  std::optional<float> weight_decay{};  // instead of the optimizer's; >= 0
  bool frozen = false;                  // their values do not change; their gradients are zero and not computed
};

// An optimizer's state between two steps.
struct OptimizerState {
  std::string optimizer;     // name_of(); empty: no state
  std::int64_t updates = 0;  // that were not skipped
  // The state of each parameter, named "<slot>.<parameter>" and shaped as it, slot by slot: those of kSlots that are
  // used.
  std::vector<std::pair<std::string, Tensor>> tensors{};
};

enum class ScheduleKind { constant, step, multistep, cosine, exponential, polynomial, onecycle, plateau };

// The learning rate as a factor of the base rate. All lengths are in epochs and may be fractional. Without warm-up the
// rates are those of torch.optim.lr_scheduler. At whole epochs: StepLR, MultiStepLR, CosineAnnealingLR (eta_min 0),
// ExponentialLR, PolynomialLR. At every step: OneCycleLR with anneal_strategy cos and without cycle_momentum; the base
// rate is its max_lr. For ReduceLROnPlateau see Plateau.
struct Schedule {
  ScheduleKind kind = ScheduleKind::constant;
  double step_size = 1;              // step: multiply by gamma every step_size epochs
  double gamma = 0.1;                // exponential: the factor of an epoch
  std::vector<double> milestones{};  // multistep: multiply by gamma at each milestone
  // Linear from 1/(warm-up steps) to 1; multiplies the factor of step, multistep and exponential. None with onecycle.
  double warmup_epochs = 0;
  double total_epochs = 1;  // the end of cosine, polynomial and onecycle; the first two fall to 0 after the warm-up
  double min_lr = 0;        // cosine, polynomial: the rate at the end, instead of 0; plateau: the lowest rate
  double power = 1;         // polynomial: exponent of the part that is left
  double pct_start = 0.3;   // onecycle: part of the steps in which the rate rises
  double div_factor = 25, final_div_factor = 1e4;  // onecycle: 1 / the first factor; the first / the last factor
  std::int64_t patience = 10;  // plateau: multiply by gamma after more than so many evaluations without a lower loss

  // Whether total_epochs counts.
  bool spans_the_run() const {
    return kind == ScheduleKind::cosine || kind == ScheduleKind::polynomial || kind == ScheduleKind::onecycle;
  }

  // The factor for the optimizer step at `epoch` (fractional: completed steps / steps per epoch). `epochs_per_step`
  // makes the factor of the first warm-up step positive.
  double factor(double epoch, double epochs_per_step) const;
  // The learning rate for that step; `lr` is the rate before the schedule.
  double rate(double lr, double epoch, double epochs_per_step) const;
};

// The state of torch.optim.lr_scheduler.ReduceLROnPlateau, with its defaults: a loss is lower if it is below
// best * (1 - 1e-4).
struct Plateau {
  double factor = 1;             // of the learning rate
  std::optional<double> best{};  // the lowest loss
  std::int64_t bad = 0;          // evaluations without a lower one, since it was reached or the rate was reduced

  // After an evaluation with this loss. `lr`: the rate before the schedule.
  void evaluated(const Schedule& schedule, double lr, double loss);
  friend bool operator==(const Plateau&, const Plateau&) = default;
};

}  // namespace dp
