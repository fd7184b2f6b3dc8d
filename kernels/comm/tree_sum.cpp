#include "kernels/comm/tree_sum.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace dp::kernels {
namespace {

// Elements per piece (2 KiB). The parts are still in the L1 cache when the sum overwrites them. memcpy stays below the
// size from which it uses string instructions, which halve the speed here.
template <typename T>
constexpr std::int64_t kPiece = 2048 / sizeof(T);

template <typename T>
using SumOf = std::conditional_t<std::is_same_v<T, BFloat16>, float, T>;

template <int Begin, int End, typename T>
inline SumOf<T> tree(const T* const* parts, std::int64_t i) {
  if constexpr (End - Begin == 1 && std::is_same_v<T, BFloat16>) {
    return to_float(parts[Begin][i]);
  } else if constexpr (End - Begin == 1) {
    return parts[Begin][i];
  } else {
    constexpr int middle = tree_split(Begin, End);
    return tree<Begin, middle>(parts, i) + tree<middle, End>(parts, i);
  }
}

template <int Ranks, typename T>
void sum_of(std::span<void* const> parts, std::int64_t begin, std::int64_t count, SumOf<T>* __restrict sum) {
  const T* heads[Ranks];
  for (std::size_t rank = 0; rank < Ranks; ++rank) heads[rank] = static_cast<const T*>(parts[rank]) + begin;
  for (std::int64_t i = 0; i < count; ++i) sum[i] = tree<0, Ranks>(heads, i);
}

// The tree over a range of ranks depends on their number, not on the first rank.
template <typename T>
void sum_piece(std::span<void* const> parts, std::int64_t begin, std::int64_t count, SumOf<T>* sum) {
  switch (parts.size()) {
    case 1: return sum_of<1, T>(parts, begin, count, sum);
    case 2: return sum_of<2, T>(parts, begin, count, sum);
    case 3: return sum_of<3, T>(parts, begin, count, sum);
    case 4: return sum_of<4, T>(parts, begin, count, sum);
    case 8: return sum_of<8, T>(parts, begin, count, sum);
    default: break;
  }
  const auto middle = static_cast<std::size_t>(tree_split(0, static_cast<int>(parts.size())));
  alignas(64) SumOf<T> right[kPiece<SumOf<T>>];
  sum_piece<T>(parts.first(middle), begin, count, sum);
  sum_piece<T>(parts.subspan(middle), begin, count, right);
  for (std::int64_t i = 0; i < count; ++i) sum[i] += right[i];
}

}  // namespace

template <typename T>
void tree_sum(std::span<void* const> parts, std::span<void* const> outs, Range range, int threads) {
  constexpr std::int64_t kLength = kPiece<SumOf<T>>;
  const std::int64_t pieces = (range.size() + kLength - 1) / kLength;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (std::int64_t piece = 0; piece < pieces; ++piece) {
    alignas(64) SumOf<T> sum[kLength];
    const std::int64_t begin = range.begin + piece * kLength;
    const std::int64_t count = std::min(kLength, range.end - begin);
    sum_piece<T>(parts, begin, count, sum);
    const void* result = sum;
    [[maybe_unused]] alignas(64) T rounded[kLength];
    if constexpr (!std::is_same_v<T, SumOf<T>>) {
      for (std::int64_t i = 0; i < count; ++i) rounded[i] = from_float<T>(sum[i]);
      result = rounded;
    }
    for (void* const out : outs)
      std::memcpy(static_cast<T*>(out) + begin, result, static_cast<std::size_t>(count) * sizeof(T));
  }
}

template void tree_sum<float>(std::span<void* const>, std::span<void* const>, Range, int);
template void tree_sum<double>(std::span<void* const>, std::span<void* const>, Range, int);
template void tree_sum<BFloat16>(std::span<void* const>, std::span<void* const>, Range, int);

}  // namespace dp::kernels
