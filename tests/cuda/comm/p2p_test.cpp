// The communicator p2p has the same bits as the communicator of CPU replicas, for every peer topology.
#include <cstdlib>

#include "cuda/comm/collectives.h"
#include "cuda/simulated_gpus.h"

using namespace dp;
using namespace dp::kernels;
using namespace dp::test;

namespace {

void check_machine(const std::vector<int>& devices) {
  Ranks ranks(devices);
  for (const std::int64_t count : {1, 1000, 5000})
    for (const int shards : {1, 2}) {
      check_all<float>(ranks, count, shards, summand_values<float>);
      check_all<BFloat16>(ranks, count, shards, summand_values<BFloat16>);
    }
  check_all<float>(ranks, 70001, 1, summand_values<float>);  // more than one round
  check_all<BFloat16>(ranks, 70001, 1, summand_values<BFloat16>);
  check_all<double>(ranks, 3001, 1, summand_values<double>);
  check_parts(ranks, 0);
  check_parts(ranks, ranks.size() - 1);
}

}  // namespace

TEST_CASE("p2p: every collective gives the bits of the fixed tree on 1 to 8 GPUs", "[matrix]") {
  for (const int size : {1, 2, 3, 4, 8}) {
    SimulatedGpus machine(size);
    std::vector<int> devices;
    for (int i = 0; i < size; ++i) devices.push_back(i);
    CHECK(Ranks(devices).name() == "p2p");
    check_machine(devices);
  }
}

TEST_CASE("p2p: GPUs without peer access communicate through the host, and the name of the communicator states it") {
  SimulatedGpus machine(3, simt::Peer::none);
  check_machine({0, 1, 2});
  CHECK(Ranks({0, 2}).name() == "p2p; cuda:0 and cuda:2 through the host (no peer access)");
}

TEST_CASE("p2p: a pair whose peer access returns wrong data is detected once and communicates through the host") {
  SimulatedGpus machine(2, simt::Peer::corrupts);
  const std::string verdict = "p2p; cuda:0 and cuda:1 through the host (peer access that returns wrong data)";
  CHECK(Ranks({0, 1}).name() == verdict);
  check_machine({0, 1});
  setenv("DP_SIMULATED_PEERS", "all", 1);  // a new probe would find no error, but the verdict is cached
  CHECK(Ranks({0, 1}).name() == verdict);
}

TEST_CASE("p2p: a pair whose peer access hangs is detected by a killed probe and communicates through the host") {
  SimulatedGpus machine(2, simt::Peer::hangs);
  const std::string verdict = "p2p; cuda:0 and cuda:1 through the host (peer access that hangs)";
  std::string name;
  // A slow probe may be given up before it tries the pair. If that happens, try again with a longer limit.
  for (const char* const seconds : {"0.3", "5", "64"}) {
    setenv("DP_PEER_PROBE_SECONDS", seconds, 1);
    name = Ranks({0, 1}).name();
    if (name == verdict) break;
  }
  CHECK(name == verdict);
  check_machine({0, 1});
  setenv("DP_SIMULATED_PEERS", "all", 1);  // the verdict is cached
  CHECK(Ranks({0, 1}).name() == verdict);
}

TEST_CASE("p2p: collectives work if only some pairs have peer access") {
  SimulatedGpus machine(4, simt::Peer::none);
  auto& peers = simt::simulation().peers;
  peers[0][1] = peers[1][0] = peers[2][3] = peers[3][2] = peers[2][0] = simt::Peer::works;
  check_machine({0, 1, 2, 3});
}

TEST_CASE("p2p: collectives work with several replicas on one GPU") {
  SimulatedGpus machine(2);
  check_machine({0, 0, 1, 1});
  check_machine({1, 0});
}

TEST_CASE("p2p: ranks that make different calls fail with both calls named") {
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
