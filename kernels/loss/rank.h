// The rank of a label among the logits of a sample.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace dp::kernels {

// The number of classes that rank before the label: those with a greater logit, or an equal logit and a lower index.
// If the label is invalid or its logit is NaN: all classes, at least 5, so that the label is not in the top 5.
template <typename T>
std::int64_t classes_before(const T* logits, std::int64_t classes, std::int64_t label) {
  if (label < 0 || label >= classes || std::isnan(logits[label])) return std::max<std::int64_t>(classes, 5);
  const T own = logits[label];
  std::int64_t before = 0;
  for (std::int64_t k = 0; k < classes; ++k) before += logits[k] > own || (logits[k] == own && k < label);
  return before;
}

}  // namespace dp::kernels
