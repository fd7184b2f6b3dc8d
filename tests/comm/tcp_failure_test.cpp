#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <sstream>

#include "comm/joining_ranks.h"
#include "support/catch.h"
#include "support/patience.h"

using namespace dp;
using namespace dp::kernels;
using namespace dp::test;

namespace {

int threads_of_process() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) ++count;
  return count;
}

// Rank r makes calls[r]. Returns each rank's error, or an empty string.
using CallOf = std::function<void(Communicator&, float*, Stream&)>;
std::vector<std::string> errors_of(const std::vector<CallOf>& calls) {
  JoiningRankGroup group(static_cast<int>(calls.size()));
  std::vector<std::string> errors(calls.size());
  group.run([&](int rank) {
    const auto me = static_cast<std::size_t>(rank);
    std::vector<float> data(300000);
    const auto comm = group.join(rank);
    const auto stream = group.contexts[me]->make_stream();
    try {
      comm->all_reduce(data.data(), 10, DType::f32, *stream);
      calls[me](*comm, data.data(), *stream);
      stream->synchronize();
    } catch (const Error& error) {
      errors[me] = std::to_string(static_cast<int>(error.code())) + " " + error.what();
    }
  });
  return errors;
}

CallOf all_reduce(std::int64_t count, DType type) {
  return [=](Communicator& comm, float* data, Stream& stream) { comm.all_reduce(data, count, type, stream); };
}
CallOf reduce(int root) {
  return [=](Communicator& comm, float* data, Stream& stream) { comm.reduce(data, 20, DType::f32, root, stream); };
}
CallOf gather(std::size_t first, std::size_t second) {
  return [=](Communicator& comm, float* data, Stream& stream) {
    const std::size_t bytes[] = {first, second};
    comm.gather(data, data + 50, bytes, 0, stream);
  };
}

int connect_as_stranger(const std::string& place) {
  std::istringstream text(place);
  std::string address;
  int port = 0;
  text >> address >> port;
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_port = htons(static_cast<std::uint16_t>(port));
  inet_pton(AF_INET, address.c_str(), &where.sin_addr);
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  return connect(socket, reinterpret_cast<sockaddr*>(&where), sizeof where) == 0 ? socket : -1;
}

}  // namespace

TEST_CASE("tcp: ranks that make different calls fail with both calls named") {
  const auto both = [](const CallOf& first, const CallOf& second, const std::string& what) {
    for (const std::string& error : errors_of({first, second}))
      CHECK_THAT(error, Catch::StartsWith("2 communicator tcp, call 1: rank") && Catch::Contains(what));
  };
  both(all_reduce(20, DType::f32), all_reduce(21, DType::f32), "all_reduce of 21 float32");
  both(all_reduce(20, DType::f32), all_reduce(20, DType::f64), "all_reduce of 20 float64");
  both(all_reduce(300000, DType::f32), reduce(1), "all_reduce of 300000");
  both(reduce(0), reduce(1), "with root 1");
  both(gather(8, 12), gather(12, 8), "parts of other sizes");
  CHECK(errors_of({gather(8, 12), gather(8, 12)}) == std::vector<std::string>(2));
}

TEST_CASE("tcp: every rank names the one of five that makes another call") {
  std::vector<CallOf> calls(5, all_reduce(300000, DType::f32));
  calls[3] = reduce(2);
  for (const std::string& error : errors_of(calls))
    CHECK_THAT(error, Catch::StartsWith("2 ") && Catch::Contains("rank 3 calls reduce of 20"));
}

TEST_CASE("tcp: a rank that disappears in a call is named") {
  JoiningRankGroup group(3);
  std::vector<std::string> errors(3);
  const auto start = std::chrono::steady_clock::now();
  group.run([&](int rank) {
    const auto me = static_cast<std::size_t>(rank);
    std::vector<float> data(3000000);
    auto comm = group.join(rank);
    const auto stream = group.contexts[me]->make_stream();
    try {
      comm->all_reduce(data.data(), 1, DType::f32, *stream);
      stream->synchronize();
      if (rank == 2) {
        comm->all_reduce(data.data(), 3000000, DType::f32, *stream);
        comm.reset();  // as if its process died
        return;
      }
      comm->all_reduce(data.data(), 3000000, DType::f32, *stream);
      stream->synchronize();
      comm->all_reduce(data.data(), 3000000, DType::f32, *stream);
      stream->synchronize();
    } catch (const Error& error) {
      errors[me] = std::to_string(static_cast<int>(error.code())) + " " + error.what();
    }
  });
  CHECK_THAT(errors[0] + errors[1], Catch::Contains("lost the connection to rank 2"));
  for (int rank : {0, 1}) CHECK_THAT(errors[static_cast<std::size_t>(rank)], Catch::StartsWith("4 communicator tcp"));
  CHECK(in_time(start, 1));
}

TEST_CASE("tcp: an abort ends every rank that waits for a missing one, and their memory stays untouched") {
  const bool threaded = GENERATE(false, true);
  for (const int size : {2, 4}) {
    ContextOptions options;
    options.threaded_streams = threaded;
    JoiningRankGroup group(size, options);
    std::atomic<int> aborted{0};
    const auto start = std::chrono::steady_clock::now();
    CHECK_THROWS_WITH(group.run([&](int rank) {
      const auto me = static_cast<std::size_t>(rank);
      const auto comm = group.join(rank);
      std::vector<float> data(2000000, 1);  // destroyed before the handle
      const auto stream = group.contexts[me]->make_stream();
      comm->all_reduce(data.data(), 2000, DType::f32, *stream);
      stream->synchronize();
      if (rank == size - 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        throw std::runtime_error("planted");
      }
      comm->all_reduce(data.data(), 2000000, DType::f32, *stream);
      try {
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

TEST_CASE("tcp: handles leave no thread behind") {
  const int before = threads_of_process();
  for (int i = 0; i < 5; ++i) {
    JoiningRankGroup group(3);
    group.run([&](int rank) { group.join(rank); });
  }
  CHECK(threads_of_process() == before);
}

TEST_CASE("tcp: connections from outside the run do not count as ranks") {
  JoiningRankGroup group(3);
  std::vector<int> strangers;
  std::mutex mutex;
  for (ThreadRendezvous& rank : group.ranks)
    rank.seen = [&](const std::vector<std::string>& places) {
      const std::lock_guard lock(mutex);
      for (const std::string& place : places) {
        // One sends nothing, one sends garbage, one claims a rank with a wrong secret.
        for (const std::string& says : {std::string(), std::string(400, 'x'), "dp1 00000002" + std::string(32, '0')}) {
          strangers.push_back(connect_as_stranger(place));
          REQUIRE(strangers.back() >= 0);
          CHECK(send(strangers.back(), says.data(), says.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(says.size()));
        }
      }
    };
  std::vector<double> sums(3);
  group.run([&](int rank) {
    const auto me = static_cast<std::size_t>(rank);
    const auto comm = group.join(rank);
    const auto stream = group.contexts[me]->make_stream();
    sums[me] = rank;
    comm->all_reduce(&sums[me], 1, DType::f64, *stream);
    stream->synchronize();
  });
  for (const int socket : strangers) close(socket);
  CHECK(sums == std::vector<double>(3, 3));
}

TEST_CASE("tcp: a rank with another secret is rejected") {
  JoiningRankGroup group(2);
  for (ThreadRendezvous& rank : group.ranks) rank.timeout = 2;
  group.ranks[1].seen = [](std::vector<std::string>& places) { places[0].back() ^= 1; };
  std::vector<std::string> errors(2);
  group.run([&](int rank) {
    try {
      group.join(rank);
    } catch (const Error& error) {
      errors[static_cast<std::size_t>(rank)] = error.what();
    }
  });
  CHECK_THAT(errors[0],
             Catch::Contains("rank 0 of communicator tcp has no connection to rank 1 at 127.0.0.1 after 2 s"));
  CHECK_THAT(errors[1], Catch::Contains("rank 1 cannot connect to rank 0 at 127.0.0.1") &&
                            Catch::Contains("closed the connection"));
}

TEST_CASE("tcp: an address that does not belong to this host is reported") {
  JoiningRankGroup group(2);
  for (ThreadRendezvous& rank : group.ranks) rank.address = "192.0.2.1";
  CHECK_THROWS_WITH(group.join(0), Catch::Contains("cannot listen at 192.0.2.1"));
  group.ranks[0].address = "some.name";
  CHECK_THROWS_WITH(group.join(0), Catch::Contains("give a numeric address"));
}

TEST_CASE("a communicator that does not join processes is rejected by name") {
  JoiningRankGroup group(2);
  CHECK_THROWS_WITH(group.join(0, "p2p"), Catch::Contains("'p2p' cannot connect processes"));
}
