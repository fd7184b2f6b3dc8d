// Input of ranks for communicator tests, and the expected sum in the communicators' fixed tree order.
#pragma once

#include <cstring>
#include <vector>

#include "dp/random.h"
#include "kernels/comm/communicator.h"
#include "kernels/low_float.h"

namespace dp::test {

template <typename T>
constexpr DType kTypeOf = sizeof(T) == 2   ? DType::bf16
                          : sizeof(T) == 4 ? DType::f32
                                           : DType::f64;
template <typename T>
using SumOf = std::conditional_t<sizeof(T) == 2, float, T>;  // accumulation type

// Differs per summand. The values are chosen so that another order of summation changes the bits.
template <typename T>
std::vector<T> summand_values(int summand, std::int64_t count) {
  std::vector<T> data(static_cast<std::size_t>(count));
  Random random(static_cast<std::uint64_t>(count), RandomUse::synthetic, static_cast<std::uint64_t>(summand));
  for (std::size_t i = 0; i < data.size(); ++i) {
    const SumOf<T> value =
        static_cast<SumOf<T>>(random.uniform(-1, 1)) * static_cast<SumOf<T>>(random.below(7) == 0 ? 1000 : 1);
    if constexpr (sizeof(T) == 2) {
      // Sums of 16-bit values are mostly exact in float32. Values of +-2^28 absorb small summands and expose the order.
      const int turn = i % 3 == 0 ? summand % 4 : 1;
      data[i] = kernels::from_float<T>(turn == 0 ? 0x1p28f : turn == 2 ? -0x1p28f : value);
    } else {
      data[i] = value;
    }
  }
  return data;
}

// Element i of the tree sum over summands [begin, end), before the final rounding.
template <typename T>
SumOf<T> exact_tree_of(const std::vector<std::vector<T>>& all, std::size_t i, int begin, int end) {
  if (end - begin > 1) {
    const int middle = kernels::tree_split(begin, end);
    return exact_tree_of(all, i, begin, middle) + exact_tree_of(all, i, middle, end);
  }
  if constexpr (sizeof(T) == 2)
    return kernels::to_float(all[static_cast<std::size_t>(begin)][i]);
  else
    return all[static_cast<std::size_t>(begin)][i];
}
template <typename T>
T tree_of(const std::vector<std::vector<T>>& all, std::size_t i, int begin, int end) {
  if constexpr (sizeof(T) == 2)
    return kernels::from_float<T>(exact_tree_of(all, i, begin, end));
  else
    return exact_tree_of(all, i, begin, end);
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace dp::test
