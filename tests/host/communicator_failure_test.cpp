#include "host/rank_group.h"
#include "support/catch.h"
#include "support/patience.h"

using namespace dp;
using namespace dp::kernels;
using namespace dp::test;

namespace {

ContextOptions mode(bool threaded) {
  ContextOptions options;
  options.threaded_streams = threaded;
  return options;
}

// The error when two ranks make these two calls.
template <typename First, typename Second>
std::string mismatch(bool threaded, First first, Second second) {
  RankGroup group(2, mode(threaded));
  auto handles = group.communicators();
  std::vector<float> memory[2] = {std::vector<float>(100), std::vector<float>(100)};
  try {
    group.run([&](int rank) {
      const auto me = static_cast<std::size_t>(rank);
      const auto stream = group.contexts[me]->make_stream();
      handles[me]->all_reduce(memory[me].data(), 10, DType::f32, *stream);
      if (rank == 0)
        first(*handles[me], memory[me].data(), *stream);
      else
        second(*handles[me], memory[me].data(), *stream);
      stream->synchronize();
    });
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::usage);
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("ranks that make different calls fail with both calls named") {
  const bool threaded = GENERATE(false, true);
  const auto all_reduce = [](std::int64_t count, DType type) {
    return [=](Communicator& comm, float* data, Stream& stream) { comm.all_reduce(data, count, type, stream); };
  };
  const auto reduce = [](int root) {
    return [=](Communicator& comm, float* data, Stream& stream) { comm.reduce(data, 20, DType::f32, root, stream); };
  };
  const auto broadcast = [](Communicator& comm, float* data, Stream& stream) {
    comm.broadcast(data, 20, DType::f32, 0, stream);
  };
  const auto gather = [](std::size_t first, std::size_t second) {
    return [=](Communicator& comm, float* data, Stream& stream) {
      const std::size_t bytes[] = {first, second};
      comm.gather(data, data + 50, bytes, 0, stream);
    };
  };
  const std::string counts = mismatch(threaded, all_reduce(20, DType::f32), all_reduce(21, DType::f32));
  CHECK_THAT(counts, Catch::Contains("call 1") && Catch::Contains("rank 0") && Catch::Contains("rank 1") &&
                         Catch::Contains("all_reduce of 20 float32") && Catch::Contains("all_reduce of 21 float32"));
  CHECK_THAT(mismatch(threaded, all_reduce(20, DType::f32), all_reduce(20, DType::f64)), Catch::Contains("float64"));
  CHECK_THAT(mismatch(threaded, all_reduce(20, DType::f32), reduce(1)),
             Catch::Contains("all_reduce of 20") && Catch::Contains("reduce of 20 float32 elements with root 1"));
  CHECK_THAT(mismatch(threaded, reduce(0), reduce(1)), Catch::Contains("root 0") && Catch::Contains("root 1"));
  CHECK_THAT(mismatch(threaded, broadcast, reduce(0)), Catch::Contains("broadcast of 20"));
  CHECK_THAT(mismatch(threaded, gather(8, 12), gather(12, 8)), Catch::Contains("parts of other sizes"));
  CHECK(mismatch(threaded, gather(8, 12), gather(8, 12)) == "no error");
}

TEST_CASE("invalid calls are rejected at once") {
  RankGroup group(2);
  auto handles = group.communicators();
  const auto stream = group.contexts[0]->make_stream();
  float data[4] = {};
  const std::size_t sizes[] = {1, 2, 3};
  CHECK_THROWS_AS(handles[0]->broadcast(data, 4, DType::f32, 2, *stream), Error);
  CHECK_THROWS_AS(handles[0]->reduce(data, 4, DType::f32, -1, *stream), Error);
  CHECK_THROWS_AS(handles[0]->all_reduce(data, 4, DType::i32, *stream), Error);
  CHECK_THROWS_AS(handles[0]->all_reduce(data, -1, DType::f32, *stream), Error);
  CHECK_THROWS_AS(handles[0]->gather(data, data, sizes, 0, *stream), Error);
  Context* const contexts[] = {group.contexts[0].get()};
  CHECK_THROWS_AS(make_host_communicators("nccl", contexts), Error);
}

TEST_CASE("an abort ends every rank that waits for a missing one") {
  const bool threaded = GENERATE(false, true);
  for (const int size : {2, 4, 8}) {
    RankGroup group(size, mode(threaded));
    auto handles = group.communicators();
    std::atomic<int> aborted{0};
    std::vector<std::vector<float>> memory(static_cast<std::size_t>(size), std::vector<float>(2000, 1));
    const auto start = std::chrono::steady_clock::now();
    CHECK_THROWS_WITH(group.run([&](int rank) {
      const auto me = static_cast<std::size_t>(rank);
      const auto stream = group.contexts[me]->make_stream();
      float* const data = memory[me].data();  // outlives the ranks' threads
      try {
        handles[me]->all_reduce(data, 2000, DType::f32, *stream);
        if (rank == size - 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(30));  // late ranks are aborted in a later call
          throw std::runtime_error("planted");
        }
        handles[me]->reduce(data, 2000, DType::f32, 0, *stream);
        stream->synchronize();
      } catch (const Aborted&) {
        ++aborted;
        throw;
      }
    }),
                      "planted");
    CHECK(aborted == size - 1);
    CHECK(in_time(start, 1));
  }
}

TEST_CASE("10,000 small all_reduces over four ranks give the right sums") {
  RankGroup group(4);
  auto handles = group.communicators();
  std::vector<int> wrong(4, 0);
  group.run([&](int rank) {
    const auto me = static_cast<std::size_t>(rank);
    const auto stream = group.contexts[me]->make_stream();
    double data[3];
    for (int i = 0; i < 10000; ++i) {
      for (double& x : data) x = i + rank;
      handles[me]->all_reduce(data, 3, DType::f64, *stream);
      if (i % 2 == 0)
        stream->synchronize();
      else
        group.contexts[me]->flush();
      wrong[me] += data[0] != 4 * i + 6 || data[2] != data[0];
    }
  });
  CHECK(wrong == std::vector<int>(4, 0));
}
