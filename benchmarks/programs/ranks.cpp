#include "benchmarks/programs/ranks.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "benchmarks/programs/protocol.h"

namespace dp::benchmarks {
namespace {

struct Listener {
  int socket = -1, port = 0;
};

Listener listen_on_loopback() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof address;
  Listener made{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  if (made.socket < 0 || ::bind(made.socket, raw, size) != 0 || ::listen(made.socket, SOMAXCONN) != 0 ||
      ::getsockname(made.socket, raw, &size) != 0)
    throw Error(ErrorCode::device, std::string("cannot listen on 127.0.0.1: ") + std::strerror(errno));
  made.port = ntohs(address.sin_port);
  return made;
}

}  // namespace

void add_rank_options(CLI::App& app, RankOptions& options) {
  app.add_option("--rank", options.rank, "of this process")->check(CLI::NonNegativeNumber);
  app.add_option("--ranks", options.ranks, "processes in all")->check(CLI::PositiveNumber);
  app.add_option("--port", options.port, "where rank 0 listens")->check(CLI::NonNegativeNumber);
  app.add_option("--timeout", options.timeout, "seconds that a missing rank is waited for")->check(CLI::PositiveNumber);
}

std::shared_ptr<ProcessGroup> join_process_group(const RankOptions& options) {
  if (options.ranks == 1) return nullptr;
  if (const auto started = process_group_from_mpi()) return ProcessGroup::join(*started);
  ProcessGroupOptions group;
  group.rank = options.rank;
  group.size = options.ranks;
  group.port = options.port;
  group.timeout_seconds = options.timeout;
  if (options.rank == 0) {
    const Listener listener = listen_on_loopback();
    group.listener = listener.socket;
    group.port = listener.port;
    say("listening", {{"port", std::to_string(listener.port)}});
  }
  return ProcessGroup::join(group);
}

}  // namespace dp::benchmarks
