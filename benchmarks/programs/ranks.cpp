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
    throw Error(ErrorCode::device, std::string("can not listen on 127.0.0.1: ") + std::strerror(errno));
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

std::shared_ptr<World> join_world(const RankOptions& options) {
  if (options.ranks == 1) return nullptr;
  if (const auto started = world_from_mpi()) return World::join(*started);
  WorldOptions world;
  world.rank = options.rank;
  world.size = options.ranks;
  world.port = options.port;
  world.timeout_seconds = options.timeout;
  if (options.rank == 0) {
    const Listener listener = listen_on_loopback();
    world.listener = listener.socket;
    world.port = listener.port;
    say("listening", {{"port", std::to_string(listener.port)}});
  }
  return World::join(world);
}

}  // namespace dp::benchmarks
