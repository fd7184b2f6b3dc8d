// The contract of every communicator, checked from one rank. Shared by tests with threads and with processes.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/device/backend.h"
#include "support/summands.h"

namespace dp::test {

// tree: sums in tree order, bit for bit. rounded: a library sums in its own order.
enum class Sums { tree, rounded };

template <typename T>
bool same_values(const std::vector<T>& a, const std::vector<T>& b, Sums sums) {
  if (sums == Sums::tree) return same_bits(a, b);
  const double tolerance = sizeof(T) == 4 ? 1e-2 : 1e-10;  // absolute, for values up to 1000
  const auto close = [&](T x, T y) {
    if constexpr (sizeof(T) == 2)
      return x == y;  // libraries never sum 16-bit types
    else
      return std::abs(double(x) - double(y)) <= tolerance;
  };
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), close);
}

// The expected sum over `size` ranks that contribute `summands` arrays each.
template <typename T>
std::vector<T> sum_over(int size, int summands, std::int64_t count) {
  std::vector<std::vector<T>> input;
  for (int i = 0; i < size * summands; ++i) input.push_back(summand_values<T>(i, count));
  std::vector<T> sum(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = tree_of(input, i, 0, size * summands);
  return sum;
}

// Runs every typed collective on `count` elements. Returns the names of those with wrong results.
template <typename T>
std::string check_collectives(kernels::Communicator& comm, kernels::Stream& stream, std::int64_t count, Sums sums) {
  const int root = comm.size() / 2;
  const std::vector<T> input = summand_values<T>(comm.rank(), count), sum = sum_over<T>(comm.size(), 1, count);
  std::vector<T> broadcast = input, reduced = input, all_reduced = input, scattered = input;
  comm.broadcast(broadcast.data(), count, kTypeOf<T>, root, stream);
  comm.reduce(reduced.data(), count, kTypeOf<T>, root, stream);
  comm.all_reduce(all_reduced.data(), count, kTypeOf<T>, stream);
  comm.reduce_scatter(scattered.data(), count, kTypeOf<T>, stream);
  stream.synchronize();
  const kernels::Range mine = kernels::slice_of(count, comm.rank(), comm.size());
  std::vector<T> expected = input;
  std::copy(sum.begin() + mine.begin, sum.begin() + mine.end, expected.begin() + mine.begin);
  std::string wrong;
  const auto expect = [&](bool right, const char* what) {
    if (!right) wrong += std::string(what) + " of " + std::to_string(count) + " " + dp::to_string(kTypeOf<T>) + "; ";
  };
  expect(same_bits(broadcast, summand_values<T>(root, count)), "broadcast");
  expect(comm.rank() == root ? same_values(reduced, sum, sums) : same_bits(reduced, input), "reduce");
  expect(same_values(all_reduced, sum, sums), "all_reduce");
  expect(same_values(scattered, expected, sums), "reduce_scatter");
  comm.all_gather(scattered.data(), count, kTypeOf<T>, stream);
  stream.synchronize();
  expect(same_values(scattered, sum, sums), "all_gather");
  return wrong;
}

// Reductions of several arrays per rank.
template <typename T>
std::string check_summands(kernels::Communicator& comm, kernels::Stream& stream, int summands, std::int64_t count,
                           Sums sums) {
  const std::int64_t stride = count + 5;
  const auto brought = [&] {
    std::vector<T> all(static_cast<std::size_t>(stride * summands));
    for (int i = 0; i < summands; ++i) {
      const auto values = summand_values<T>(comm.rank() * summands + i, count);
      std::copy(values.begin(), values.end(), all.begin() + i * stride);
    }
    return all;
  };
  const std::vector<T> before = brought(), sum = sum_over<T>(comm.size(), summands, count);
  comm.set_summands(summands, stride);
  std::string wrong;
  const int root = comm.size() - 1;
  for (const bool all : {true, false}) {
    std::vector<T> data = brought();
    if (all)
      comm.all_reduce(data.data(), count, kTypeOf<T>, stream);
    else
      comm.reduce(data.data(), count, kTypeOf<T>, root, stream);
    stream.synchronize();
    const std::vector<T> result(data.begin(), data.begin() + count);
    const std::vector<T> own(before.begin(), before.begin() + count);
    const bool changes = all || comm.rank() == root;
    const bool right = changes ? same_values(result, sum, sums) : same_bits(result, own);
    const bool others_stay = std::equal(data.begin() + stride, data.end(), before.begin() + stride);
    if (!right || !others_stay) wrong += std::string(all ? "all_reduce" : "reduce") + " of several summands; ";
  }
  comm.set_summands(1, 0);
  return wrong;
}

// Gathers parts of very different sizes, some empty, to `root` and scatters them back; then all-gathers equal parts.
inline std::string check_parts(kernels::Communicator& comm, kernels::Stream& stream, int root) {
  std::vector<std::size_t> bytes;
  std::vector<char> all;
  for (int rank = 0; rank < comm.size(); ++rank) {
    bytes.push_back(rank % 3 == 1 ? 0 : static_cast<std::size_t>(1 + rank * 1237));
    all.insert(all.end(), bytes.back(), static_cast<char>('a' + rank));
  }
  const auto me = static_cast<std::size_t>(comm.rank());
  const std::vector<char> part(bytes[me], static_cast<char>('a' + comm.rank()));
  std::vector<char> whole(all.size()), back(bytes[me]);
  comm.gather(part.data(), whole.data(), bytes, root, stream);
  comm.scatter(whole.data(), back.data(), bytes, root, stream);
  stream.synchronize();
  std::string wrong;
  if (comm.rank() == root && whole != all) wrong += "gather to " + std::to_string(root) + "; ";
  if (back != part) wrong += "scatter from " + std::to_string(root) + "; ";

  constexpr std::size_t kEach = 3001;
  std::vector<char> parts(kEach * static_cast<std::size_t>(comm.size())), expected;
  for (int rank = 0; rank < comm.size(); ++rank) expected.insert(expected.end(), kEach, static_cast<char>('A' + rank));
  std::fill_n(parts.begin() + static_cast<std::ptrdiff_t>(me * kEach), kEach, static_cast<char>('A' + comm.rank()));
  comm.all_gather_parts(parts.data(), kEach, stream);
  stream.synchronize();
  if (parts != expected) wrong += "all_gather_parts; ";
  return wrong;
}

inline std::string check_everything(kernels::Communicator& comm, kernels::Stream& stream, Sums sums) {
  std::string wrong;
  for (const std::int64_t count : {0, 1, 7, 1025, 1000003}) {
    wrong += check_collectives<float>(comm, stream, count, sums);
    wrong += check_collectives<double>(comm, stream, count, sums);
  }
  for (int root = 0; root < comm.size(); ++root) wrong += check_parts(comm, stream, root);
  for (const int summands : {2, 3}) wrong += check_summands<float>(comm, stream, summands, 70001, sums);
  if (sums == Sums::tree) {
    for (const std::int64_t count : {1, 1025, 300001})
      wrong += check_collectives<kernels::BFloat16>(comm, stream, count, sums);
    wrong += check_summands<kernels::BFloat16>(comm, stream, 3, 70001, sums);
  }
  return wrong;
}

}  // namespace dp::test
