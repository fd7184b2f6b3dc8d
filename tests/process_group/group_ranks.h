// The ranks of a process group as threads of the test: each joins, runs its work and leaves.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "dp/process_group.h"
#include "engine/process_group/connection.h"
#include "support/catch.h"
#include "support/patience.h"

namespace dp::test {

// For checks on a rank's thread: Catch assertions are allowed on the test's thread only.
#define DP_HOLDS(expression) \
  if (!(expression)) throw Error(ErrorCode::usage, "does not hold: " #expression)

// A timeout in seconds that no test reaches, not even on a busy machine.
inline constexpr double kNever = 3600;

struct RankFailure {
  bool failed = false;
  ErrorCode code = ErrorCode::usage;
  std::string text;
};

// A free port of this host, and the listener for rank 0 on it.
struct GroupAddress {
  FileHandle listener = process_group::listen_on("127.0.0.1", 0);
  int port = process_group::port_of(listener);

  // Connections that rank 0 has not accepted yet.
  unsigned queued() const {
    tcp_info info{};
    socklen_t size = sizeof info;
    REQUIRE(::getsockopt(listener.get(), IPPROTO_TCP, TCP_INFO, &info, &size) == 0);
    return info.tcpi_unacked;
  }

  // A new connection to rank 0.
  FileHandle connected() const {
    return process_group::connect_to("127.0.0.1", port, process_group::Clock::now() + kPatience);
  }
  // Rank 0's end of the next connection.
  FileHandle accepted() const {
    FileHandle file;
    REQUIRE(becomes([&] { return static_cast<bool>(file = process_group::accept_from(listener)); }));
    return file;
  }

  ProcessGroupOptions options(int rank, int size, double timeout = kNever) {
    ProcessGroupOptions o;
    o.rank = rank;
    o.size = size;
    o.port = port;
    o.token = "the secret";
    o.timeout_seconds = timeout;
    if (rank == 0) o.listener = ::dup(listener.get());
    return o;
  }
};

// Runs work(process group) on every rank. Returns the error of each rank.
inline std::vector<RankFailure> on_ranks(int size,
                                         const std::function<void(const std::shared_ptr<ProcessGroup>&)>& work,
                                         double timeout = kNever) {
  GroupAddress address;
  std::vector<RankFailure> failures(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    const ProcessGroupOptions options = address.options(rank, size, timeout);
    threads.emplace_back([&, options, rank] {
      RankFailure& failure = failures[static_cast<std::size_t>(rank)];
      try {
        const auto group = ProcessGroup::join(options);
        try {
          work(group);
        } catch (const Error& error) {
          group->fail(error);
          throw;
        }
      } catch (const Error& error) {
        failure = {true, error.code(), error.what()};
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return failures;
}

// The same; no rank may fail.
inline void all_ranks(int size, const std::function<void(const std::shared_ptr<ProcessGroup>&)>& work) {
  for (const RankFailure& failure : on_ranks(size, work)) {
    INFO(failure.text);
    CHECK_FALSE(failure.failed);
  }
}

}  // namespace dp::test
