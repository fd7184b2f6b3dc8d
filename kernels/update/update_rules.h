// The update of one parameter element by each optimizer, in float32, for CPUs and GPUs. Both compile it without
// contracting a*b+c, so that each new value is the same everywhere. kernels/update/reference.cpp has its own in
// float64.
//
// A new optimizer adds: an UpdateRule, its constants, an element type, and a case in each switch here.
#pragma once

#include <cmath>
#include <cstdint>

namespace dp::kernels {

enum class UpdateRule : std::uint8_t { sgd, adamw };

// Tensors of state per parameter that a rule can use.
inline constexpr int kMaxSlots = 2;
// Parameters are assigned to groups in units of this number of elements. Every parameter begins at a multiple of it.
inline constexpr int kGroupElements = 16;
inline constexpr int kMaxGroups = 16;

struct SgdConstants {
  float momentum = 0;
  std::uint32_t nesterov = 0;
};

struct AdamWConstants {
  double beta1 = 0.9, beta2 = 0.999;
  float eps = 1e-8f;
  std::uint32_t unused = 0;  // no padding: the device receives every byte
};

struct UpdateConstants {
  SgdConstants sgd{};
  AdamWConstants adamw{};
};

// What an update reads in device memory besides the tensors.
struct UpdateInputs {
  struct Group {
    float lr = 0, weight_decay = 0;
  };
  Group groups[kMaxGroups];  // the first one is that of parameters without a group
  UpdateConstants constants{};
  // Updates before this one, including those that StepResults::skipped_steps counts.
  std::int64_t updates = 0;
};

// What all elements of a group share. `number`: 1 for the first update that was not skipped.
struct ElementInputs {
  UpdateInputs::Group group;
  UpdateConstants constants;
  float clip = 1;  // factor of the gradient
  std::int64_t number = 1;
};

// torch.optim.SGD
template <bool kMomentum>
struct SgdElement {
  static constexpr int kSlots = kMomentum ? 1 : 0;
  ElementInputs in;

  constexpr explicit SgdElement(const ElementInputs& inputs) : in(inputs) {}
  // Returns the new weight. Updates the state in place; a rule with fewer slots leaves the others alone.
  constexpr float operator()(float gradient, float weight, float& velocity, float&) const {
    gradient = in.clip * gradient + in.group.weight_decay * weight;
    float direction = gradient;
    if constexpr (kMomentum) {
      velocity = in.constants.sgd.momentum * velocity + gradient;
      direction = in.constants.sgd.nesterov != 0 ? gradient + in.constants.sgd.momentum * velocity : velocity;
    }
    return weight - in.group.lr * direction;
  }
};

// The same on every device: multiplications in one order.
constexpr double power(double base, std::int64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent /= 2, base *= base)
    if (exponent % 2 == 1) result *= base;
  return result;
}

// torch.optim.AdamW. State: the averages of the gradient and of its square.
struct AdamWElement {
  static constexpr int kSlots = 2;
  float clip, shrink, keep1, share1, keep2, share2, step, root2, eps;

  constexpr explicit AdamWElement(const ElementInputs& in)
      : clip(in.clip),
        shrink(static_cast<float>(1 - static_cast<double>(in.group.lr) * static_cast<double>(in.group.weight_decay))),
        keep1(static_cast<float>(in.constants.adamw.beta1)),
        share1(static_cast<float>(1 - in.constants.adamw.beta1)),
        keep2(static_cast<float>(in.constants.adamw.beta2)),
        share2(static_cast<float>(1 - in.constants.adamw.beta2)),
        step(static_cast<float>(static_cast<double>(in.group.lr) / (1 - power(in.constants.adamw.beta1, in.number)))),
        root2(static_cast<float>(std::sqrt(1 - power(in.constants.adamw.beta2, in.number)))),
        eps(in.constants.adamw.eps) {}
  constexpr float operator()(float gradient, float weight, float& mean, float& square) const {
    gradient *= clip;
    mean = keep1 * mean + share1 * gradient;
    square = keep2 * square + share2 * gradient * gradient;
    return weight * shrink - step * (mean / (std::sqrt(square) / root2 + eps));
  }
};

// Number of state tensors of a rule.
constexpr int slots_of(UpdateRule rule) {
  switch (rule) {
    case UpdateRule::sgd: return 1;
    case UpdateRule::adamw: return 2;
  }
  return 0;
}

// The name in plans, errors and checkpoints.
constexpr const char* name_of(UpdateRule rule) {
  switch (rule) {
    case UpdateRule::sgd: return "sgd";
    case UpdateRule::adamw: return "adamw";
  }
  return "";
}

// Returns f.operator()<Element>() with the element type of a rule. `state`: whether the update has state tensors.
template <typename F>
auto with_element(UpdateRule rule, bool state, const F& f) {
  switch (rule) {
    case UpdateRule::sgd: break;
    case UpdateRule::adamw: return f.template operator()<AdamWElement>();
  }
  return state ? f.template operator()<SgdElement<true>>() : f.template operator()<SgdElement<false>>();
}

}  // namespace dp::kernels
