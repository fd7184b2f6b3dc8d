// The dropout mask by the rule of dp/random.h, one element at a time.
#pragma once

#include <cstdint>

#include "dp/random.h"
#include "kernels/ops.h"
#include "kernels/step_state.h"

namespace dp::kernels::reference {

// `element` is the index in C,H,W order within the sample.
inline bool dropout_keeps(const DropoutSpec& spec, const StepInputs& inputs, std::int64_t sample,
                          std::int64_t element) {
  const PhiloxWords words = dropout_words(inputs.seed, spec.layer, inputs.step, static_cast<std::uint64_t>(sample),
                                          static_cast<std::uint32_t>(element / 4));
  return words[static_cast<std::size_t>(element % 4)] >= drop_threshold(spec.p);
}

inline double dropout_scale(const DropoutSpec& spec) { return 1.0 / (1.0 - static_cast<double>(spec.p)); }

}  // namespace dp::kernels::reference
