#include "kernels/comm/host_communicator.h"

#include "host/rank_group.h"
#include "support/catch.h"
#include "support/summands.h"

using namespace dp;
using namespace dp::kernels;
using namespace dp::test;

namespace {

// Runs every collective on one handle in sequence. Adds each wrong result of a rank to `wrong`.
template <typename T>
void check_all(RankGroup& group, std::int64_t count) {
  const int size = static_cast<int>(group.contexts.size());
  const int root = size / 2;
  auto handles = group.communicators();
  std::vector<std::vector<T>> input;
  for (int rank = 0; rank < size; ++rank) input.push_back(summand_values<T>(rank, count));
  std::vector<T> sum(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = tree_of(input, i, 0, size);

  std::vector<std::string> wrong(static_cast<std::size_t>(size));
  group.run([&](int rank) {
    const auto me = static_cast<std::size_t>(rank);
    const auto stream = group.contexts[me]->make_stream();
    Communicator& comm = *handles[me];
    std::vector<T> broadcast = input[me], reduced = input[me], all_reduced = input[me], scattered = input[me];
    comm.broadcast(broadcast.data(), count, kTypeOf<T>, root, *stream);
    comm.reduce(reduced.data(), count, kTypeOf<T>, root, *stream);
    comm.all_reduce(all_reduced.data(), count, kTypeOf<T>, *stream);
    comm.reduce_scatter(scattered.data(), count, kTypeOf<T>, *stream);
    stream->synchronize();
    const Range mine = slice_of(count, rank, size);
    std::vector<T> expected = input[me];
    std::copy(sum.begin() + mine.begin, sum.begin() + mine.end, expected.begin() + mine.begin);
    const auto expect = [&](bool right, const char* what) {
      if (!right) wrong[me] += std::string(what) + " ";
    };
    expect(same_bits(broadcast, input[static_cast<std::size_t>(root)]), "broadcast");
    expect(same_bits(reduced, rank == root ? sum : input[me]), "reduce");
    expect(same_bits(all_reduced, sum), "all_reduce");
    expect(same_bits(scattered, expected), "reduce_scatter");
    comm.all_gather(scattered.data(), count, kTypeOf<T>, *stream);
    stream->synchronize();
    expect(same_bits(scattered, sum), "all_gather");
  });
  INFO("ranks " << size << ", count " << count << ", " << dp::to_string(kTypeOf<T>));
  for (int rank = 0; rank < size; ++rank) {
    INFO("rank " << rank);
    CHECK(wrong[static_cast<std::size_t>(rank)] == "");
  }
}

// Gathers parts of very different sizes, some empty, to `root` and scatters them back.
void check_parts(RankGroup& group, int root) {
  const int size = static_cast<int>(group.contexts.size());
  std::vector<std::size_t> bytes;
  std::vector<char> all;
  for (int rank = 0; rank < size; ++rank) {
    bytes.push_back(rank % 3 == 1 ? 0 : static_cast<std::size_t>(1 + rank * 1237));
    all.insert(all.end(), bytes.back(), static_cast<char>('a' + rank));
  }
  auto handles = group.communicators();
  std::vector<std::vector<char>> whole(static_cast<std::size_t>(size)), back(static_cast<std::size_t>(size));
  group.run([&](int rank) {
    const auto me = static_cast<std::size_t>(rank);
    const auto stream = group.contexts[me]->make_stream();
    const std::vector<char> part(bytes[me], static_cast<char>('a' + rank));
    if (rank == root) whole[me].resize(all.size());
    back[me].resize(bytes[me]);
    handles[me]->gather(part.data(), whole[me].data(), bytes, root, *stream);
    handles[me]->scatter(whole[me].data(), back[me].data(), bytes, root, *stream);
    stream->synchronize();
  });
  INFO("ranks " << size << ", root " << root);
  CHECK(whole[static_cast<std::size_t>(root)] == all);
  for (int rank = 0; rank < size; ++rank)
    CHECK(back[static_cast<std::size_t>(rank)] ==
          std::vector<char>(bytes[static_cast<std::size_t>(rank)], static_cast<char>('a' + rank)));
}

ContextOptions stream_mode(bool threaded) {
  ContextOptions options;
  options.threaded_streams = threaded;
  return options;
}

}  // namespace

TEST_CASE("every collective gives the bits of the fixed tree on every number of ranks") {
  const bool threaded = GENERATE(false, true);
  const int size = GENERATE(1, 2, 3, 4, 5, 8);
  for (const std::int64_t count : {0, 1, 7, 1023, 1024, 1025, 100000}) {
    RankGroup group(size, stream_mode(threaded));
    check_all<float>(group, count);
    check_all<double>(group, count);
    check_all<BFloat16>(group, count);
  }
}

TEST_CASE("large and odd numbers of ranks add in the order of the fixed tree") {
  for (const int size : {6, 7, 11, 16}) {
    RankGroup group(size);
    check_all<float>(group, 3000);
    check_all<BFloat16>(group, 3000);
  }
}

TEST_CASE("the number of OpenMP threads does not change the bits of a sum") {
#if defined(DP_THREAD_SANITIZER)
  DP_SKIP("the thread sanitizer does not know libgomp's barriers");
#endif
  ContextOptions options;
  options.threads = 2;
  RankGroup group(3, options);
  check_all<float>(group, 100001);
}

TEST_CASE("gather and scatter move parts of different sizes") {
  const bool threaded = GENERATE(false, true);
  for (const int size : {1, 2, 3, 4, 5, 8}) {
    RankGroup group(size, stream_mode(threaded));
    for (int root = 0; root < size; root += 3) check_parts(group, root);
  }
}

TEST_CASE("a gather leaves the root's part unchanged if it is already in place") {
  RankGroup group(2);
  auto handles = group.communicators();
  std::vector<char> whole(6, 'r');
  const std::vector<std::size_t> bytes = {4, 2};
  group.run([&](int rank) {
    const auto stream = group.contexts[static_cast<std::size_t>(rank)]->make_stream();
    handles[static_cast<std::size_t>(rank)]->gather(rank == 0 ? whole.data() : "xy", whole.data(), bytes, 0, *stream);
    stream->synchronize();
  });
  CHECK(std::string(whole.begin(), whole.end()) == "rrrrxy");
}

TEST_CASE("memory may be overwritten as soon as the stream has passed the call") {
  const bool threaded = GENERATE(false, true);
  RankGroup group(3, stream_mode(threaded));
  auto handles = group.communicators();
  std::vector<int> wrong(3, 0);
  group.run([&](int rank) {
    const auto me = static_cast<std::size_t>(rank);
    const auto stream = group.contexts[me]->make_stream();
    std::vector<float> data(5000);
    LambdaOp refill([&] { std::fill(data.begin(), data.end(), static_cast<float>(rank + 1)); });
    LambdaOp check_broadcast([&] { wrong[me] += data[0] != 2 || data[4999] != 2; });
    LambdaOp check_sum([&] { wrong[me] += data[0] != 6 || data[4999] != 6; });
    for (int step = 0; step < 30; ++step) {
      refill.run(*stream, {}, nullptr);
      handles[me]->broadcast(data.data(), 5000, DType::f32, 1, *stream);
      check_broadcast.run(*stream, {}, nullptr);
      refill.run(*stream, {}, nullptr);
      handles[me]->reduce(data.data(), 5000, DType::f32, step % 3, *stream);
      if (rank == step % 3) check_sum.run(*stream, {}, nullptr);
      refill.run(*stream, {}, nullptr);
      handles[me]->all_reduce(data.data(), 5000, DType::f32, *stream);
      check_sum.run(*stream, {}, nullptr);
    }
    stream->synchronize();
  });
  CHECK(wrong == std::vector<int>(3, 0));
}

TEST_CASE("two sets of handles on two streams do not disturb each other") {
  const bool threaded = GENERATE(false, true);
  RankGroup group(4, stream_mode(threaded));
  auto gradients = group.communicators(), losses = group.communicators();
  std::vector<int> wrong(4, 0);
  group.run([&](int rank) {
    const auto me = static_cast<std::size_t>(rank);
    BareContext& context = *group.contexts[me];
    const auto compute = context.make_stream(), comm = context.make_stream();
    const auto ready = context.make_event(), reduced = context.make_event();
    std::vector<double> gradient(3000), loss(1);
    LambdaOp backward([&] { std::fill(gradient.begin(), gradient.end(), 1.0); });
    LambdaOp forward([&] { loss[0] = rank; });
    LambdaOp check([&] { wrong[me] += gradient[2999] != 4 || loss[0] != 6; });
    for (int step = 0; step < 40; ++step) {
      backward.run(*compute, {}, nullptr);
      compute->record(*ready);
      comm->wait(*ready);
      gradients[me]->all_reduce(gradient.data(), 3000, DType::f64, *comm);
      comm->record(*reduced);
      forward.run(*compute, {}, nullptr);
      losses[me]->all_reduce(loss.data(), 1, DType::f64, *compute);
      compute->wait(*reduced);
      check.run(*compute, {}, nullptr);
      if (step % 8 == rank) context.flush();
    }
    compute->synchronize();
  });
  CHECK(wrong == std::vector<int>(4, 0));
}
