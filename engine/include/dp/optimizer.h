// Optimizers, parameter groups and learning rate schedules.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "dp/tensor.h"

namespace dp {

// torch.optim.SGD: g += weight_decay*w; m = momentum*m + g; w -= lr*(nesterov ? g + momentum*m : m).
struct Sgd {
  float lr = 0.1f;
  float momentum = 0;
  bool nesterov = false;
  float weight_decay = 0;
};

// torch.optim.AdamW: w *= 1 - lr*weight_decay; m = beta1*m + (1-beta1)*g; v = beta2*v + (1-beta2)*g*g;
// w -= lr * (m/(1-beta1^t)) / (sqrt(v/(1-beta2^t)) + eps) in update t, from 1. Skipped steps do not count.
struct AdamW {
  float lr = 1e-3f;
  double beta1 = 0.9, beta2 = 0.999;
  float eps = 1e-8f;
  float weight_decay = 1e-2f;
};

// Every alternative has `lr` and `weight_decay`.
using Optimizer = std::variant<Sgd, AdamW>;

std::string_view name_of(const Optimizer& optimizer);  // "sgd", "adamw"
float& learning_rate(Optimizer& optimizer);
float learning_rate(const Optimizer& optimizer);

// Parameters that an optimizer treats differently from the others. The first group that a parameter fits counts.
struct ParameterGroup {
  std::string pattern = "*";            // of parameter names, with the shell's *, ? and [...]
  bool vectors = false;                 // of these, only biases and normalisation: parameters of one dimension
  float lr_factor = 1;                  // times the optimizer's learning rate; >= 0
  std::optional<float> weight_decay{};  // instead of the optimizer's; >= 0
  bool frozen = false;                  // their values do not change, and their gradients are zero
};

// An optimizer's state between two steps.
struct OptimizerState {
  std::string optimizer;     // name_of(); empty: no state
  std::int64_t updates = 0;  // that were not skipped
  // The state of each parameter, named "<slot>.<parameter>" and shaped as it, slot by slot. PyTorch's slot names: for
  // sgd momentum_buffer, for adamw exp_avg and exp_avg_sq.
  std::vector<std::pair<std::string, Tensor>> tensors{};
};

enum class ScheduleKind { constant, step, multistep, cosine };

// The learning rate as a factor of the base rate. All lengths are in epochs and may be fractional. At whole epochs and
// without warm-up it equals torch.optim.lr_scheduler's StepLR, MultiStepLR and CosineAnnealingLR (eta_min 0).
struct Schedule {
  ScheduleKind kind = ScheduleKind::constant;
  double step_size = 1;  // step: multiply by gamma every step_size epochs
  double gamma = 0.1;
  std::vector<double> milestones{};  // multistep: multiply by gamma at each milestone
  double warmup_epochs = 0;          // linear from 1/(warm-up steps) to 1; multiplies the factor of step and multistep
  double total_epochs = 1;           // cosine: falls from 1 at the end of the warm-up to 0 here
  double min_lr = 0;                 // cosine: the rate at the end, instead of 0

  // The factor for the optimizer step at `epoch` (fractional: completed steps / steps per epoch). `epochs_per_step`
  // makes the factor of the first warm-up step positive.
  double factor(double epoch, double epochs_per_step) const;
  // The learning rate for that step; `lr` is the rate before the schedule.
  double rate(double lr, double epoch, double epochs_per_step) const;
};

}  // namespace dp
