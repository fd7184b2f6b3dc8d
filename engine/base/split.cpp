#include "engine/base/split.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <numeric>

#include "dp/error.h"

namespace dp {
namespace {

void require_sample(std::int64_t batch) {
  if (batch < 1) throw Error(ErrorCode::usage, "a batch needs at least one sample");
}

}  // namespace

std::vector<std::int64_t> split_batch(std::int64_t batch, int replicas, Split split) {
  require_sample(batch);
  if (replicas < 1) throw Error(ErrorCode::usage, "at least one replica is required");
  std::vector<std::int64_t> sizes;
  for (int rank = 0; rank < replicas; ++rank) {
    const std::int64_t size = engine::shard_of(batch, rank, replicas, split).size();
    if (size == 0) break;
    sizes.push_back(size);
  }
  return sizes;
}

std::vector<std::int64_t> split_batch(std::int64_t batch, const std::vector<int>& weights) {
  require_sample(batch);
  if (weights.empty() || std::ranges::min(weights) < 1)
    throw Error(ErrorCode::usage, "the weights of a split are at least 1, one per replica");
  std::vector<std::int64_t> sizes;
  for (std::size_t i = 0; i < weights.size(); ++i)
    sizes.push_back(engine::shard_of(batch, static_cast<int>(i), weights).size());
  return sizes;
}

namespace engine {

kernels::Range shard_of(std::int64_t rows, int index, int parts, Split split) {
  if (split == Split::chunk) {
    const std::int64_t size = (rows + parts - 1) / parts;
    return {std::min(rows, index * size), std::min(rows, (index + 1) * size)};
  }
  const std::int64_t size = rows / parts, larger = rows % parts;
  const auto begin = [&](std::int64_t i) { return i * size + std::min(i, larger); };
  return {begin(index), begin(index + 1)};
}

kernels::Range shard_of(std::int64_t rows, int index, const std::vector<int>& weights) {
  const std::int64_t total = std::accumulate(weights.begin(), weights.end(), std::int64_t{0});
  // Each shard gets its exact share, rounded down. The first shards get one more of the remaining samples each.
  std::int64_t all = 0, begin = 0, size = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const std::int64_t share = rows * weights[i] / total;
    if (static_cast<int>(i) < index) begin += share;
    if (static_cast<int>(i) == index) size = share;
    all += share;
  }
  const std::int64_t left = rows - all;
  begin += std::min<std::int64_t>(index, left);
  return {begin, begin + size + (index < left ? 1 : 0)};
}

std::string split_text(const DataParallelOptions& options) {
  if (!options.split_weights.empty()) return fmt::format("{}", fmt::join(options.split_weights, ":"));
  return options.split == Split::chunk ? "chunk" : "balanced";
}

void read_split(const std::string& text, DataParallelOptions& options) {
  options.split = text == "chunk" ? Split::chunk : Split::balanced;
  options.split_weights.clear();
  if (text == "chunk" || text == "balanced") return;
  const char *at = text.data(), *const end = at + text.size();
  while (true) {
    int weight = 0;
    const auto [next, error] = std::from_chars(at, end, weight);
    if (error != std::errc() || weight < 1 || weight > kMostSplitWeight || (next != end && *next != ':')) break;
    options.split_weights.push_back(weight);
    if (next == end) return;
    at = next + 1;
  }
  throw Error(ErrorCode::usage,
              "--split '" + text +
                  "' is not balanced, chunk, auto, or a whole number from 1 to 1000000 for each replica, such as 3:1");
}

}  // namespace engine
}  // namespace dp
