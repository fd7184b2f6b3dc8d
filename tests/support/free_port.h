// Ports for tests that run at the same time.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/files.h"

namespace dp::test {

// A free port, from a range that the system does not use by itself. Each process begins its search at another port.
// This process keeps a bound socket, which does not listen, so that no other test gets the port before the process
// ends.
inline std::string free_port() {
  constexpr int kFirst = 20000, kCount = 10000;
  static int next = static_cast<int>(::getpid()) * 61 % kCount;
  static std::vector<FileHandle> kept;
  while (true) {
    const int port = kFirst + next;
    next = (next + 1) % kCount;
    FileHandle file(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    if (::bind(file.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) continue;  // in use
    const int yes = 1;
    ::setsockopt(file.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);  // rank 0 can listen on the port
    kept.push_back(std::move(file));
    return std::to_string(port);
  }
}

}  // namespace dp::test
