#include "kernels/comm/tcp_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <system_error>

#include "dp/error.h"

namespace dp::kernels {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses numeric(const std::string& address, int port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0)
    throw Error(ErrorCode::device, "'" + address + "' is not an address that ranks can connect to (" +
                                       gai_strerror(error) + "); give a numeric address");
  return {found, &freeaddrinfo};
}

Descriptor open_socket(const addrinfo& address) {
  Descriptor socket(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket)
    throw Error(ErrorCode::device, "cannot create a socket for communicator tcp (" + describe_errno(errno) +
                                       "); if that is the limit, raise ulimit -n");
  return socket;
}

void set_option(const Descriptor& socket, int level, int option, int value) {
  setsockopt(socket.get(), level, option, &value, sizeof value);  // errors are ignored: the options are not essential
}

Moved moved(ssize_t result, bool zero_is_over) {
  if (result > 0) return {static_cast<std::size_t>(result)};
  if (result == 0) return {0, zero_is_over};
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return {};
  return {0, true, errno};
}

}  // namespace

Descriptor::~Descriptor() {
  if (number_ >= 0) close(number_);
}

std::string describe_errno(int error) { return std::generic_category().message(error); }

TcpListener listen_at(const std::string& address, int backlog) {
  const Addresses where = numeric(address, 0);
  TcpListener listener{open_socket(*where), 0};
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  auto* const name = reinterpret_cast<sockaddr*>(&bound);
  if (bind(listener.socket.get(), where->ai_addr, where->ai_addrlen) != 0 ||
      listen(listener.socket.get(), backlog) != 0 || getsockname(listener.socket.get(), name, &length) != 0)
    throw Error(ErrorCode::device, "communicator tcp cannot listen at " + address + " (" + describe_errno(errno) +
                                       "); is it an address of this host?");
  listener.port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                                    : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
  return listener;
}

Descriptor connect_to(const std::string& address, int port) {
  const Addresses where = numeric(address, port);
  Descriptor socket = open_socket(*where);
  if (connect(socket.get(), where->ai_addr, where->ai_addrlen) != 0 && errno != EINPROGRESS)
    throw Error(ErrorCode::device, "communicator tcp cannot reach " + address + " port " + std::to_string(port) + " (" +
                                       describe_errno(errno) + ")");
  return socket;
}

void tune(const Descriptor& socket) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 6);
}

Moved try_send(const Descriptor& socket, std::span<const char> bytes) {
  return moved(send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), false);
}

Moved try_receive(const Descriptor& socket, std::span<char> bytes) {
  return moved(recv(socket.get(), bytes.data(), bytes.size(), 0), true);
}

std::string random_secret() {
  unsigned char bytes[16];
  if (getrandom(bytes, sizeof bytes, 0) != static_cast<ssize_t>(sizeof bytes))
    throw Error(ErrorCode::device, "cannot read random numbers (" + describe_errno(errno) + ")");
  std::string text;
  for (const unsigned char byte : bytes)
    for (const int digit : {byte >> 4, byte & 15}) text += "0123456789abcdef"[digit];
  return text;
}

}  // namespace dp::kernels
