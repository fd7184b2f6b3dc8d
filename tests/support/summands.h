// Data of ranks for tests of communicators, and the sum in the one order that communicators have.
#pragma once

#include <cstring>
#include <vector>

#include "dp/random.h"
#include "kernels/communicator.h"

namespace dp::test {

template <typename T>
constexpr DType kTypeOf = sizeof(T) == 4 ? DType::f32 : DType::f64;

// Different for every summand, with digits that make the order of summation show.
template <typename T>
std::vector<T> summand_values(int summand, std::int64_t count) {
  std::vector<T> data(static_cast<std::size_t>(count));
  Random random(static_cast<std::uint64_t>(count), RandomUse::synthetic, static_cast<std::uint64_t>(summand));
  for (T& x : data) x = static_cast<T>(random.uniform(-1, 1)) * static_cast<T>(random.below(7) == 0 ? 1000 : 1);
  return data;
}

// Element i of the tree over the summands [begin, end).
template <typename T>
T tree_of(const std::vector<std::vector<T>>& all, std::size_t i, int begin, int end) {
  if (end - begin == 1) return all[static_cast<std::size_t>(begin)][i];
  const int middle = kernels::tree_split(begin, end);
  return tree_of(all, i, begin, middle) + tree_of(all, i, middle, end);
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace dp::test
