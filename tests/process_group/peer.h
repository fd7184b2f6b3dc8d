// The other end of a rank's connection: sends and receives raw messages.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <optional>
#include <string>

#include "engine/process_group/connection.h"
#include "engine/process_group/coordinator.h"
#include "process_group/group_ranks.h"
#include "support/patience.h"

namespace dp::test {

class Peer {
 public:
  using Kind = process_group::Kind;
  using Message = process_group::Message;

  explicit Peer(FileHandle file) : connection_(std::move(file)) {}
  // Connects to rank 0.
  explicit Peer(const GroupAddress& address) : Peer(address.connected()) {}
  Peer(const GroupAddress& address, const process_group::Hello& hello) : Peer(address) {
    send({Kind::hello, 0, to_text(hello)});
  }
  Peer(const GroupAddress& address, int rank, int size)
      : Peer(address, process_group::Hello{"the secret", rank, size, "host " + std::to_string(rank),
                                           "name " + std::to_string(rank)}) {}

  void send(const Message& message) { connection_.send(message); }
  void stop_sending() { ::shutdown(connection_.descriptor(), SHUT_WR); }
  // The next message; empty if the connection has ended, or if nothing arrives for a long time.
  std::optional<Message> next() {
    const auto begin = std::chrono::steady_clock::now();
    while (true) {
      if (auto message = connection_.next(kLongest)) return message;
      if (!open_ || !in_time(begin, 5)) return std::nullopt;
      pollfd one{connection_.descriptor(), POLLIN, 0};
      ::poll(&one, 1, 100);
      open_ = connection_.read(kLongest);
    }
  }
  // The next message of this kind; earlier ones are dropped.
  std::optional<Message> next(Kind kind) {
    auto message = next();
    while (message && message->kind != kind) message = next();
    return message;
  }
  // Drops what arrives until the connection ends. False if it does not end.
  bool has_ended() {
    while (next()) continue;
    return !open_;
  }
  // Whether the connection is open and nothing has arrived.
  bool is_quiet() const {
    char byte = 0;
    return ::recv(connection_.descriptor(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
  }

 private:
  static constexpr std::size_t kLongest = std::size_t{1} << 20;
  process_group::Connection connection_;
  bool open_ = true;
};

}  // namespace dp::test
