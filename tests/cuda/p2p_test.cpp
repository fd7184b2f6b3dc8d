// The communicator p2p: the same bits as the communicator of CPU replicas, whatever reaches what.
#include <cstdlib>

#include "cuda/ranks.h"
#include "cuda/simulated_gpus.h"
#include "support/catch.h"
#include "support/summands.h"

using namespace dp;
using namespace dp::kernels;
using namespace dp::test;

namespace {

template <typename T>
void check_all(Ranks& ranks, std::int64_t count, int lanes) {
  const int size = ranks.size(), root = size / 2;
  std::vector<std::vector<T>> summands;
  for (int i = 0; i < size * lanes; ++i) summands.push_back(summand_values<T>(i, count));
  std::vector<T> sum(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = tree_of(summands, i, 0, size * lanes);

  std::vector<std::string> wrong(static_cast<std::size_t>(size));
  ranks.run([&](int rank, Context& context, Communicator& comm) {
    const auto me = static_cast<std::size_t>(rank);
    const auto stream = context.make_stream();
    std::vector<T> input;  // this rank's lanes, one behind the other
    for (int lane = 0; lane < lanes; ++lane) {
      const std::vector<T>& part = summands[me * static_cast<std::size_t>(lanes) + static_cast<std::size_t>(lane)];
      input.insert(input.end(), part.begin(), part.end());
    }
    comm.bring(lanes, count);
    const auto expect = [&](std::vector<T> got, std::vector<T> first, const char* what) {
      first.insert(first.end(), input.begin() + count, input.end());  // the other lanes stay
      if (!same_bits(got, first)) wrong[me] += std::string(what) + " ";
    };
    const std::vector<T> own(input.begin(), input.begin() + count);
    const Range mine = slice_of(count, rank, size);
    std::vector<T> scattered = own;
    std::copy(sum.begin() + mine.begin, sum.begin() + mine.end, scattered.begin() + mine.begin);

    OnDevice<T> broadcast(context, *stream, input), reduced(context, *stream, input), all(context, *stream, input),
        slices(context, *stream, input);
    comm.broadcast(broadcast.data(), count, kTypeOf<T>, root, *stream);
    comm.reduce(reduced.data(), count, kTypeOf<T>, root, *stream);
    comm.all_reduce(all.data(), count, kTypeOf<T>, *stream);
    comm.reduce_scatter(slices.data(), count, kTypeOf<T>, *stream);
    expect(broadcast.content(), summands[static_cast<std::size_t>(root * lanes)], "broadcast");
    expect(reduced.content(), rank == root ? sum : own, "reduce");
    expect(all.content(), sum, "all_reduce");
    expect(slices.content(), scattered, "reduce_scatter");
    comm.all_gather(slices.data(), count, kTypeOf<T>, *stream);
    expect(slices.content(), sum, "all_gather");
  });
  INFO("ranks " << size << ", count " << count << ", lanes " << lanes << ", " << ranks.name());
  for (int rank = 0; rank < size; ++rank) {
    INFO("rank " << rank);
    CHECK(wrong[static_cast<std::size_t>(rank)] == "");
  }
}

void check_parts(Ranks& ranks, int root) {
  const int size = ranks.size();
  std::vector<std::size_t> bytes;
  std::vector<char> all, equal;
  for (int rank = 0; rank < size; ++rank) {
    bytes.push_back(rank % 3 == 1 ? 0 : static_cast<std::size_t>(1 + rank * 1237));
    all.insert(all.end(), bytes.back(), static_cast<char>('a' + rank));
    equal.insert(equal.end(), 24, static_cast<char>('A' + rank));
  }
  std::vector<int> right(static_cast<std::size_t>(size));
  ranks.run([&](int rank, Context& context, Communicator& comm) {
    const auto me = static_cast<std::size_t>(rank);
    const auto stream = context.make_stream();
    const std::vector<char> mine(bytes[me], static_cast<char>('a' + rank));
    OnDevice<char> part(context, *stream, mine), whole(context, *stream, std::vector<char>(all.size())),
        back(context, *stream, std::vector<char>(bytes[me]));
    std::vector<char> own_part(equal.size());
    std::fill_n(own_part.begin() + rank * 24, 24, static_cast<char>('A' + rank));
    OnDevice<char> parts(context, *stream, own_part);
    comm.gather(part.data(), whole.data(), bytes, root, *stream);
    comm.scatter(whole.data(), back.data(), bytes, root, *stream);
    comm.all_gather_parts(parts.data(), 24, *stream);
    right[me] = (rank != root || whole.content() == all) && back.content() == mine && parts.content() == equal;
  });
  INFO("root " << root << ", " << ranks.name());
  CHECK(right == std::vector<int>(static_cast<std::size_t>(size), 1));
}

void check_machine(const std::vector<int>& devices) {
  Ranks ranks(devices);
  for (const std::int64_t count : {1, 1000, 5000})
    for (const int lanes : {1, 2}) check_all<float>(ranks, count, lanes);
  check_all<float>(ranks, 70001, 1);  // above the size for one round
  check_all<double>(ranks, 3001, 1);
  check_parts(ranks, 0);
  check_parts(ranks, ranks.size() - 1);
}

}  // namespace

TEST_CASE("p2p: every collective gives the bits of the fixed tree, on 1 to 8 GPUs") {
  for (const int size : {1, 2, 3, 4, 8}) {
    SimulatedGpus machine(size);
    std::vector<int> devices;
    for (int i = 0; i < size; ++i) devices.push_back(i);
    CHECK(Ranks(devices).name() == "p2p");
    check_machine(devices);
  }
}

TEST_CASE("p2p: GPUs that do not see each other exchange through the host, and say so") {
  SimulatedGpus machine(3, simt::Peer::none);
  check_machine({0, 1, 2});
  CHECK(Ranks({0, 2}).name() == "p2p; cuda:0 and cuda:2 through the host (no peer access)");
}

TEST_CASE("p2p: S18, a pair whose peer access returns wrong data is found out once and goes through the host") {
  SimulatedGpus machine(2, simt::Peer::corrupts);
  const std::string verdict = "p2p; cuda:0 and cuda:1 through the host (peer access that returns wrong data)";
  CHECK(Ranks({0, 1}).name() == verdict);
  check_machine({0, 1});
  setenv("DP_SIMULATED_PEERS", "all", 1);  // a new probe would find nothing wrong: the verdict is kept
  CHECK(Ranks({0, 1}).name() == verdict);
}

TEST_CASE(
    "p2p: S18, a pair whose peer access hangs is found out by a process that is killed, and goes through the host") {
  SimulatedGpus machine(2, simt::Peer::hangs);
  setenv("DP_PEER_PROBE_SECONDS", "0.3", 1);
  const std::string verdict = "p2p; cuda:0 and cuda:1 through the host (peer access that hangs)";
  CHECK(Ranks({0, 1}).name() == verdict);
  unsetenv("DP_PEER_PROBE_SECONDS");
  check_machine({0, 1});
  setenv("DP_SIMULATED_PEERS", "all", 1);  // the verdict is kept
  CHECK(Ranks({0, 1}).name() == verdict);
}

TEST_CASE("p2p: some pairs see each other, some do not") {
  SimulatedGpus machine(4, simt::Peer::none);
  auto& peers = simt::simulation().peers;
  peers[0][1] = peers[1][0] = peers[2][3] = peers[3][2] = peers[2][0] = simt::Peer::works;
  check_machine({0, 1, 2, 3});
}

TEST_CASE("p2p: several replicas on one GPU") {
  SimulatedGpus machine(2);
  check_machine({0, 0, 1, 1});
  check_machine({1, 0});
}

TEST_CASE("p2p: ranks that make different calls are told which") {
  SimulatedGpus machine(2);
  Ranks ranks({0, 1});
  CHECK_THROWS_WITH(ranks.run([](int rank, Context& context, Communicator& comm) {
    const auto stream = context.make_stream();
    OnDevice<float> data(context, *stream, std::vector<float>(100));
    comm.all_reduce(data.data(), rank == 0 ? 20 : 21, DType::f32, *stream);
  }),
                    Catch::Contains("all_reduce of 20 float32") && Catch::Contains("all_reduce of 21 float32"));
  CHECK_THROWS_WITH(ranks.run([](int, Context& context, Communicator& comm) {
    const auto stream = context.make_stream();
    comm.broadcast(nullptr, 0, DType::f32, 2, *stream);
  }),
                    Catch::Contains("root"));
}
