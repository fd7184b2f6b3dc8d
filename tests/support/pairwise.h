// Selects combinations of options for tests that have no time for all of them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <set>
#include <utility>
#include <vector>

namespace dp::test {

// Returns combinations in which any two values of different factors occur together at least once. `sizes`: the number
// of values of each factor. A combination has the index of a value for each factor. The result is always the same.
template <std::size_t Factors>
std::vector<std::array<std::size_t, Factors>> pairwise(const std::array<std::size_t, Factors>& sizes) {
  using Value = std::pair<std::size_t, std::size_t>;  // factor, index
  std::set<std::pair<Value, Value>> open;
  for (std::size_t a = 0; a < Factors; ++a)
    for (std::size_t b = a + 1; b < Factors; ++b)
      for (std::size_t x = 0; x < sizes[a]; ++x)
        for (std::size_t y = 0; y < sizes[b]; ++y) open.insert({{a, x}, {b, y}});
  std::vector<std::array<std::size_t, Factors>> rows;
  while (!open.empty()) {
    std::vector<Value> row{open.begin()->first, open.begin()->second};
    const auto gain = [&](const Value& value) {
      return std::count_if(row.begin(), row.end(), [&](const Value& other) {
        return open.count({std::min(value, other), std::max(value, other)}) > 0;
      });
    };
    for (std::size_t factor = 0; factor < Factors; ++factor) {
      if (factor == row[0].first || factor == row[1].first) continue;
      Value best{factor, 0};
      for (std::size_t x = 1; x < sizes[factor]; ++x)
        if (gain({factor, x}) > gain(best)) best = {factor, x};
      row.push_back(best);
    }
    std::sort(row.begin(), row.end());
    auto& indices = rows.emplace_back();
    for (const auto& [factor, x] : row) indices[factor] = x;
    for (std::size_t a = 0; a < Factors; ++a)
      for (std::size_t b = a + 1; b < Factors; ++b) open.erase({row[a], row[b]});
  }
  return rows;
}

}  // namespace dp::test
