// What backends need of the optimizers (dp/optimizer.h): the numbers of an update in device memory, and the update of
// one element, for any optimizer. Compiled without contracting a*b+c.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <iterator>
#include <span>

#include "dp/optimizer.h"

namespace dp::kernels {

// Slots that a rule can use.
inline constexpr int kMaxSlots = 3;
// Parameters are assigned to groups in units of this number of elements. Every parameter begins at a multiple of it.
inline constexpr int kGroupElements = 16;
inline constexpr int kMaxGroups = 16;
// Elements of a partial sum of a norm. Replicas' parts of a bucket begin at multiples of it.
inline constexpr std::int64_t kNormBlock = 1024;

// An update op and an optimizer's state depend on this. Other options may change from step to step.
struct UpdateKind {
  std::uint8_t optimizer = 0;  // its place in dp::Optimizer
  std::uint8_t slots = 0;      // bit i: kSlots[i] is used

  constexpr int slot_count() const { return std::popcount(slots); }
  // Whether this update leaves a state of the kind `held` in place: it uses the same slots, or none.
  constexpr bool keeps(const UpdateKind& held) const {
    return optimizer == held.optimizer && (slots == held.slots || slots == 0);
  }
  bool operator==(const UpdateKind&) const = default;
};

// What an update reads in device memory besides the tensors.
struct UpdateInputs {
  struct Group {
    float lr = 0, weight_decay = 0;
  };
  Group groups[kMaxGroups];  // the first one is that of parameters without a group
  RuleOptions options{};
  // Updates before this one, including those that StepResults::skipped_steps counts.
  std::int64_t updates = 0;
};

// Names and slots in the order of dp::Optimizer.
inline constexpr auto kOptimizerNames = []<typename... Own>(const std::variant<Own...>*) {
  return std::array{Own::kName...};
}(static_cast<const Optimizer*>(nullptr));
inline constexpr auto kOptimizerSlots = []<typename... Own>(const std::variant<Own...>*) {
  static_assert(((std::size(Own::kSlots) <= kMaxSlots) && ...));
  return std::array{std::span<const OptimizerSlot>(Own::kSlots)...};
}(static_cast<const Optimizer*>(nullptr));

// What the optimizer computes with whole tensors.
template <typename Own>
inline constexpr TensorWork kTensorWork = [] {
  if constexpr (requires { Own::kTensorWork; })
    return Own::kTensorWork;
  else
    return TensorWork::none;
}();
constexpr TensorWork tensor_work(const UpdateKind& kind) {
  constexpr auto kWork = []<typename... Own>(const std::variant<Own...>*) {
    return std::array{kTensorWork<Own>...};
  }(static_cast<const Optimizer*>(nullptr));
  return kWork[kind.optimizer];
}

// The name in plans, errors and checkpoints.
constexpr const char* name_of(const UpdateKind& kind) { return kOptimizerNames[kind.optimizer]; }

template <typename Own>
inline constexpr std::size_t kSlotCount = std::size(Own::kSlots);
template <typename Own>
inline constexpr unsigned kAllSlots = (1u << kSlotCount<Own>)-1;
template <typename Own>
inline constexpr unsigned kRequiredSlots = [] {
  unsigned slots = 0;
  for (std::size_t i = 0; i < kSlotCount<Own>; ++i) slots |= (Own::kSlots[i].optional ? 0u : 1u) << i;
  return slots;
}();

constexpr UpdateKind kind_of(const Optimizer& optimizer) {
  const unsigned slots = std::visit(
      []<typename Own>(const Own& own) {
        unsigned used = kRequiredSlots<Own>;
        if constexpr (kRequiredSlots<Own> != kAllSlots<Own>)
          for (std::size_t i = 0; i < kSlotCount<Own>; ++i)
            if (Own::kSlots[i].optional && own.uses(i)) used |= 1u << i;
        return used;
      },
      optimizer);
  return {static_cast<std::uint8_t>(optimizer.index()), static_cast<std::uint8_t>(slots)};
}

constexpr RuleOptions rule_options(const Optimizer& optimizer) {
  return std::visit([](const auto& own) { return RuleOptions::of(own); }, optimizer);
}

// The update of one element in the type T, for the parameters of one group.
template <typename Own, typename T>
struct Element {
  T clip;   // factor of the gradient
  T decay;  // weight decay, or with kDecoupledDecay the factor of the weight
  typename Own::template Rule<T> rule;

  // `number`: 1 for the first update that was not skipped.
  constexpr Element(const UpdateInputs& inputs, const UpdateInputs::Group& group, float clipping, std::int64_t number)
      : clip(T(clipping)),
        decay(T(Own::kDecoupledDecay ? 1 - static_cast<double>(group.lr) * static_cast<double>(group.weight_decay)
                                     : static_cast<double>(group.weight_decay))),
        rule(inputs.options, static_cast<double>(group.lr), number) {}

  // Returns the new weight. Updates the slots in place; a rule with fewer slots leaves the others alone.
  constexpr T operator()(T gradient, T weight, T& first, T& second, T& third) const {
    gradient = clip * gradient;
    if constexpr (Own::kDecoupledDecay)
      weight = weight * decay;
    else
      gradient = gradient + decay * weight;
    if constexpr (kSlotCount<Own> == 1)
      return rule(gradient, weight, first);
    else if constexpr (kSlotCount<Own> == 2)
      return rule(gradient, weight, first, second);
    else
      return rule(gradient, weight, first, second, third);
  }
};

// Elements of one tensor, in one part of the arenas, for an optimizer with tensor work.
struct TensorSegment {
  std::int64_t begin = 0;  // from the start of the part; a multiple of kGroupElements
  std::int32_t count = 0;  // at most kNormBlock
  std::int32_t tensor = 0;
  TensorOfElement shape{};
};

// The passes of an optimizer with tensor work over the elements of one segment.
template <typename Own, typename T>
struct SegmentRule {
  T clip, decay, keep;
  T rate;  // times the factor
  TensorOfElement shape;
  typename Own::template Rule<T> rule;

  // `ratio`: of the segment's tensor, as TrustRatios computes it.
  constexpr SegmentRule(const UpdateInputs& inputs, const UpdateInputs::Group& group, const TensorOfElement& tensor,
                        double ratio, float clipping, std::int64_t number)
      : clip(T(clipping)),
        decay(T(group.weight_decay)),
        keep(T(Own::kDecoupledDecay ? 1 - static_cast<double>(group.lr) * static_cast<double>(group.weight_decay) : 1)),
        rate(T(static_cast<double>(group.lr) *
               Own::template Rule<T>::factor(inputs.options, static_cast<double>(group.weight_decay), ratio, tensor))),
        shape(tensor),
        rule(inputs.options, number) {}

  constexpr T direction(T gradient, T weight, T& first, T& second) const {
    return rule.direction(clip * gradient, weight, decay, shape, first, second);
  }
  constexpr T applied(T weight, T direction) const { return weight * keep - rate * direction; }
};

constexpr double trust_ratio(double weight_squares, double direction_squares) {
  return weight_squares > 0 && direction_squares > 0 ? std::sqrt(weight_squares) / std::sqrt(direction_squares) : 1;
}

// TrustRatios on the host.
inline void trust_ratios(const double* partials, const std::int64_t* first, double* ratios, std::int64_t tensors) {
  for (std::int64_t tensor = 0; tensor < tensors; ++tensor) {
    double sums[2] = {};
    for (std::int64_t s = first[tensor]; s < first[tensor + 1]; ++s)
      sums[0] += partials[2 * s], sums[1] += partials[2 * s + 1];
    ratios[tensor] = trust_ratio(sums[0], sums[1]);
  }
}

template <unsigned kSlots, int kSlot>
inline constexpr bool kUses = (kSlots >> kSlot & 1) != 0;

// Slot kSlot of a state whose used slots lie `stride` elements apart; null if it is not used.
template <unsigned kSlots, int kSlot, typename T>
constexpr T* slot_of(T* state, std::int64_t stride) {
  constexpr int kBefore = std::popcount(kSlots & ((1u << kSlot) - 1));
  return kUses<kSlots, kSlot> ? state + kBefore * stride : nullptr;
}

// Calls f.operator()<Own>() with the optimizer of this kind, if it has tensor work. It uses two slots, always.
template <typename F>
void with_tensor_work(const UpdateKind& kind, const F& f) {
  [&]<typename... Own>(const std::variant<Own...>*) {
    const auto call = [&]<typename Each>(const Each*) {
      if constexpr (kTensorWork<Each> != TensorWork::none) {
        static_assert(kSlotCount<Each> == 2 && kRequiredSlots<Each> == kAllSlots<Each>);
        f.template operator()<Each>();
      }
    };
    std::uint8_t place = 0;
    (void)((place++ == kind.optimizer && (call(static_cast<const Own*>(nullptr)), true)) || ...);
  }(static_cast<const Optimizer*>(nullptr));
}

// Calls f.operator()<Own, kSlots>() with the optimizer of this kind and the slots that it uses, if there is one and it
// has no tensor work.
template <typename F>
void with_update(const UpdateKind& kind, const F& f) {
  const auto with_slots = [&]<typename Own, unsigned kSlots>(const auto& self) {
    if constexpr ((kSlots & kRequiredSlots<Own>) == kRequiredSlots<Own> && kTensorWork<Own> == TensorWork::none)
      if (kind.slots == kSlots) return f.template operator()<Own, kSlots>();
    if constexpr (kSlots < kAllSlots<Own>) self.template operator()<Own, kSlots + 1>(self);
  };
  [&]<typename... Own>(const std::variant<Own...>*) {
    std::uint8_t place = 0;
    (void)((place++ == kind.optimizer && (with_slots.template operator()<Own, 0>(with_slots), true)) || ...);
  }(static_cast<const Optimizer*>(nullptr));
}

}  // namespace dp::kernels
