// All calls of a communicator, between ranks on GPUs.
#pragma once

#include "cuda/comm/ranks.h"
#include "support/catch.h"
#include "support/summands.h"

namespace dp::test {

// Small integers, whose sums are exact in any order. bfloat16 represents all integers up to 256, so sums of 16 are
// exact, too.
template <typename T>
std::vector<T> whole_numbers(int i, std::int64_t count) {
  std::vector<T> values(static_cast<std::size_t>(count));
  for (std::size_t at = 0; at < values.size(); ++at) {
    const int whole = static_cast<int>(at) * 7 + i * 13;
    if constexpr (sizeof(T) == 2)
      values[at] = kernels::from_float<T>(static_cast<float>(whole % 31 - 15));
    else
      values[at] = static_cast<T>(whole % 41 - 20);
  }
  return values;
}

inline std::vector<int> first_gpus(int count) {
  std::vector<int> devices;
  for (int i = 0; i < count; ++i) devices.push_back(i);
  return devices;
}

// Checks every collective with `count` elements per rank and shard. values(i, count): the i-th summand. The sums must
// have the bits of the fixed tree.
template <typename T>
void check_all(Ranks& ranks, std::int64_t count, int shards, std::vector<T> (*values)(int, std::int64_t)) {
  const int size = ranks.size(), root = size / 2;
  std::vector<std::vector<T>> summands;
  for (int i = 0; i < size * shards; ++i) summands.push_back(values(i, count));
  std::vector<T> sum(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = tree_of(summands, i, 0, size * shards);

  std::vector<std::string> wrong(static_cast<std::size_t>(size));
  ranks.run([&](int rank, kernels::Context& context, kernels::Communicator& comm) {
    const auto me = static_cast<std::size_t>(rank);
    const auto stream = context.make_stream();
    std::vector<T> input;  // this rank's shards, one after another
    for (int shard = 0; shard < shards; ++shard) {
      const std::vector<T>& part = summands[me * static_cast<std::size_t>(shards) + static_cast<std::size_t>(shard)];
      input.insert(input.end(), part.begin(), part.end());
    }
    comm.set_summands(shards, count);
    comm.reserve(static_cast<std::size_t>(count) * sizeof(T));
    const auto expect = [&](std::vector<T> got, std::vector<T> first, const char* what) {
      first.insert(first.end(), input.begin() + count, input.end());  // the other shards are unchanged
      if (!same_bits(got, first)) wrong[me] += std::string(what) + " ";
    };
    const std::vector<T> own(input.begin(), input.begin() + count);
    const kernels::Range mine = kernels::slice_of(count, rank, size);
    std::vector<T> scattered = own;
    std::copy(sum.begin() + mine.begin, sum.begin() + mine.end, scattered.begin() + mine.begin);

    OnDevice<T> broadcast(context, *stream, input), reduced(context, *stream, input), all(context, *stream, input),
        slices(context, *stream, input), gathered(context, *stream, input);
    ranks.synchronise();
    comm.broadcast(broadcast.data(), count, kTypeOf<T>, root, *stream);
    comm.reduce(reduced.data(), count, kTypeOf<T>, root, *stream);
    comm.all_reduce(all.data(), count, kTypeOf<T>, *stream);
    comm.reduce_scatter(slices.data(), count, kTypeOf<T>, *stream);
    comm.reduce_scatter(gathered.data(), count, kTypeOf<T>, *stream);
    comm.all_gather(gathered.data(), count, kTypeOf<T>, *stream);  // directly after it
    stream->synchronize();
    ranks.synchronise();
    expect(broadcast.content(), summands[static_cast<std::size_t>(root * shards)], "broadcast");
    expect(reduced.content(), rank == root ? sum : own, "reduce");
    expect(all.content(), sum, "all_reduce");
    expect(slices.content(), scattered, "reduce_scatter");
    expect(gathered.content(), sum, "all_gather");
  });
  INFO("ranks " << size << ", count " << count << ", shards " << shards << ", " << ranks.name());
  for (int rank = 0; rank < size; ++rank) {
    INFO("rank " << rank);
    CHECK(wrong[static_cast<std::size_t>(rank)] == "");
  }
}

// Gather, scatter, and an all-gather of equal parts.
inline void check_parts(Ranks& ranks, int root) {
  const int size = ranks.size();
  std::vector<std::size_t> bytes;
  std::vector<char> all, equal;
  for (int rank = 0; rank < size; ++rank) {
    bytes.push_back(rank % 3 == 1 ? 0 : static_cast<std::size_t>(1 + rank * 1237));
    all.insert(all.end(), bytes.back(), static_cast<char>('a' + rank));
    equal.insert(equal.end(), 24, static_cast<char>('A' + rank));
  }
  std::vector<int> right(static_cast<std::size_t>(size));
  ranks.run([&](int rank, kernels::Context& context, kernels::Communicator& comm) {
    const auto me = static_cast<std::size_t>(rank);
    const auto stream = context.make_stream();
    const std::vector<char> mine(bytes[me], static_cast<char>('a' + rank));
    OnDevice<char> part(context, *stream, mine), whole(context, *stream, std::vector<char>(all.size())),
        back(context, *stream, std::vector<char>(bytes[me]));
    std::vector<char> own_part(equal.size());
    std::fill_n(own_part.begin() + rank * 24, 24, static_cast<char>('A' + rank));
    OnDevice<char> parts(context, *stream, own_part);
    comm.reserve(all.size());
    ranks.synchronise();
    comm.gather(part.data(), whole.data(), bytes, root, *stream);
    comm.scatter(whole.data(), back.data(), bytes, root, *stream);
    comm.all_gather_parts(parts.data(), 24, *stream);
    stream->synchronize();
    ranks.synchronise();
    right[me] = (rank != root || whole.content() == all) && back.content() == mine && parts.content() == equal;
  });
  INFO("root " << root << ", " << ranks.name());
  CHECK(right == std::vector<int>(static_cast<std::size_t>(size), 1));
}

}  // namespace dp::test
