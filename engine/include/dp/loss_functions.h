// Losses of outputs: each output of a model has a target of its own. PyTorch's names, parameters and defaults. Every
// backend compiles them, in double.
//
// A new one is a struct with a name, value() and slope(), and its place in OutputLoss. Both get an output and its
// target; slope() is the derivative by the output. They return NaN for NaN. SoftCrossEntropyLoss alone reads all
// outputs of a sample at once.
#pragma once

#include <cmath>
#include <variant>

namespace dp {

struct MseLoss {  // (output - target)^2
  static constexpr const char* kName = "mse";
  constexpr double value(double output, double target) const { return (output - target) * (output - target); }
  constexpr double slope(double output, double target) const { return 2 * (output - target); }
  friend bool operator==(const MseLoss&, const MseLoss&) = default;
};

struct L1Loss {  // |output - target|; the slope is 0 where they are equal
  static constexpr const char* kName = "l1";
  constexpr double value(double output, double target) const { return std::abs(output - target); }
  constexpr double slope(double output, double target) const {
    const double away = output - target;
    return away > 0 ? 1 : away < 0 ? -1 : away;
  }
  friend bool operator==(const L1Loss&, const L1Loss&) = default;
};

struct HuberLoss {  // half the square up to `delta`, from there on a line of slope `delta`
  static constexpr const char* kName = "huber";
  float delta = 1;  // positive

  constexpr double value(double output, double target) const {
    const double away = std::abs(output - target), d = static_cast<double>(delta);
    return away > d ? d * (away - d / 2) : away * away / 2;
  }
  constexpr double slope(double output, double target) const {
    const double away = output - target, d = static_cast<double>(delta);
    return away > d ? d : away < -d ? -d : away;
  }
  friend bool operator==(const HuberLoss&, const HuberLoss&) = default;
};

struct SmoothL1Loss {  // HuberLoss with `delta` = `beta`, divided by `beta`; L1Loss for 0
  static constexpr const char* kName = "smooth_l1";
  float beta = 1;  // at least 0

  constexpr double value(double output, double target) const {
    const double away = std::abs(output - target), b = static_cast<double>(beta);
    return away >= b ? away - b / 2 : away * away / (2 * b);
  }
  constexpr double slope(double output, double target) const {
    const double away = output - target, b = static_cast<double>(beta);
    return away >= b || away <= -b ? L1Loss().slope(output, target) : away / b;
  }
  friend bool operator==(const SmoothL1Loss&, const SmoothL1Loss&) = default;
};

// The sigmoid of the output is the probability of a class, and the target is 0, 1 or between: classes that do not
// exclude each other. `pos_weight` multiplies the loss of positive targets.
struct BceWithLogitsLoss {
  static constexpr const char* kName = "bce_with_logits";
  float pos_weight = 1;  // positive

  constexpr double value(double output, double target) const {
    const double below = std::log1p(std::exp(-std::abs(output))) + (output < 0 ? -output : 0);  // -log(sigmoid(output))
    return (1 - target) * output + weight(target) * below;
  }
  constexpr double slope(double output, double target) const {
    return 1 - target - weight(target) / (1 + std::exp(output));
  }
  friend bool operator==(const BceWithLogitsLoss&, const BceWithLogitsLoss&) = default;

 private:
  constexpr double weight(double target) const { return 1 + (static_cast<double>(pos_weight) - 1) * target; }
};

// torchvision's sigmoid_focal_loss: BceWithLogitsLoss times (1 - p)^gamma, where p is the probability of the target,
// and times `alpha` for positive targets and 1 - `alpha` for negative ones; a negative `alpha` leaves this factor out.
struct FocalLoss {
  static constexpr const char* kName = "focal";
  float alpha = 0.25f;  // at most 1
  float gamma = 2;      // at least 0

  constexpr double value(double output, double target) const {
    return balance(target) * BceWithLogitsLoss().value(output, target) * std::pow(doubt(output, target), gamma);
  }
  constexpr double slope(double output, double target) const {
    const double g = static_cast<double>(gamma), left = doubt(output, target);
    const double positive = sigmoid(output), falls = (2 * target - 1) * positive * sigmoid(-output);  // by the output
    double slope = BceWithLogitsLoss().slope(output, target) * std::pow(left, g);
    if (left > 0) slope -= BceWithLogitsLoss().value(output, target) * g * std::pow(left, g - 1) * falls;
    return balance(target) * slope;
  }
  friend bool operator==(const FocalLoss&, const FocalLoss&) = default;

 private:
  static constexpr double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
  // 1 - p, without a difference of numbers near 1.
  static constexpr double doubt(double output, double target) {
    return target * sigmoid(-output) + (1 - target) * sigmoid(output);
  }
  constexpr double balance(double target) const {
    const double a = static_cast<double>(alpha);
    return a < 0 ? 1 : a * target + (1 - a) * (1 - target);
  }
};

// CrossEntropyLoss with probabilities of the classes as targets: the sum over them of -target * log(p), where p is the
// softmax of the outputs. The targets need not add up to 1: they may be weighted.
struct SoftCrossEntropyLoss {
  static constexpr const char* kName = "soft_cross_entropy";
  constexpr double value(double log_p, double target) const {
    return target == 0 && log_p <= 0 ? 0 : -target * log_p;  // also where log_p is minus infinity
  }
  constexpr double slope(double log_p, double target, double target_sum) const {
    return target_sum * std::exp(log_p) - target;
  }
  friend bool operator==(const SoftCrossEntropyLoss&, const SoftCrossEntropyLoss&) = default;
};

using OutputLoss =
    std::variant<MseLoss, L1Loss, HuberLoss, SmoothL1Loss, BceWithLogitsLoss, FocalLoss, SoftCrossEntropyLoss>;

inline const char* name_of(const OutputLoss& loss) {
  return std::visit([](const auto& one) { return one.kName; }, loss);
}

}  // namespace dp
