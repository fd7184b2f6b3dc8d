// Conversion of arrays between element types.
#pragma once

#include <type_traits>

#include "kernels/device/cpu/lanes.h"
#include "kernels/device/cpu/parallel.h"

namespace dp::kernels {

template <typename From, typename To>
void convert(int threads, const void* src, void* dst, std::int64_t count) {
  constexpr bool kLanesHave = (std::is_same_v<From, float> || std::is_same_v<From, BFloat16>)&&(
      std::is_same_v<To, float> || std::is_same_v<To, BFloat16>);
  const From* from = static_cast<const From*>(src);
  To* to = static_cast<To*>(dst);
  parallel_ranges(threads, count, 16, [=](std::int64_t begin, std::int64_t end) {
    if constexpr (kLanesHave) {
      for_lanes_of(begin, end, [=](auto lanes, std::int64_t i) {
        using V = decltype(lanes);
        V::store(to + i, V::load(from + i));
      });
    } else if constexpr (std::is_same_v<To, Float16>) {
      for (std::int64_t i = begin; i < end; ++i) to[i] = from_float<To>(from[i]);
    } else if constexpr (std::is_same_v<From, Float16>) {
      for (std::int64_t i = begin; i < end; ++i) to[i] = to_float(from[i]);
    } else {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) to[i] = static_cast<To>(from[i]);
    }
  });
}

}  // namespace dp::kernels
