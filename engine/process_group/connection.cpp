#include "engine/process_group/connection.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <thread>

#include "dp/error.h"

namespace dp::process_group {

std::string drawn_token() {
  std::array<unsigned char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw Error(ErrorCode::device, "cannot read random numbers for the run's token");
  std::string text;
  for (const unsigned char byte : bytes)
    for (const int nibble : {byte >> 4, byte & 15}) text += "0123456789abcdef"[nibble];
  return text;
}

namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

// Throws Error(usage) if the address is wrong, Error(device) if the name cannot be looked up now.
Addresses resolve(const std::string& address, int port, bool to_listen) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (to_listen ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found);
  const bool for_now = error == EAI_AGAIN || error == EAI_MEMORY || error == EAI_SYSTEM;
  if (error != 0)
    throw Error(for_now ? ErrorCode::device : ErrorCode::usage,
                "cannot resolve the address '" + address + "' of rank 0: " + ::gai_strerror(error) + "; " +
                    (for_now ? "check that this host can look up names" : "correct --master-addr (MASTER_ADDR)"));
  return {found, ::freeaddrinfo};
}

std::string place(const std::string& address, int port) { return address + ":" + std::to_string(port); }

void send_at_once(int socket) {
  const int yes = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

// Returns a connected socket, or an empty handle with the reason in errno.
FileHandle try_connect(const addrinfo& to, int milliseconds) {
  FileHandle file(::socket(to.ai_family, to.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, to.ai_protocol));
  if (!file) return {};
  if (::connect(file.get(), to.ai_addr, to.ai_addrlen) == 0) return file;
  if (errno != EINPROGRESS) return {};
  pollfd ready{file.get(), POLLOUT, 0};
  int error = ETIMEDOUT;
  socklen_t size = sizeof error;
  if (::poll(&ready, 1, milliseconds) == 1) ::getsockopt(file.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error == 0) return file;
  errno = error;
  return {};
}

}  // namespace

FileHandle listen_on(const std::string& address, int port) {
  const Addresses found = resolve(address, port, true);
  int error = 0;
  for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
    FileHandle file(::socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, one->ai_protocol));
    const int yes = 1;
    if (file) ::setsockopt(file.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (file && ::bind(file.get(), one->ai_addr, one->ai_addrlen) == 0 && ::listen(file.get(), SOMAXCONN) == 0)
      return file;
    error = errno;
  }
  throw Error(ErrorCode::usage, "rank 0 cannot listen on " + place(address, port) + ": " + std::strerror(error) +
                                    "; choose another --master-port, or an address of this host");
}

int port_of(const FileHandle& socket) {
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&name), &size);
  return ntohs(name.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(name).sin6_port
                                          : reinterpret_cast<const sockaddr_in&>(name).sin_port);
}

FileHandle connect_to(const std::string& address, int port, Clock::time_point deadline) {
  constexpr auto kPause = std::chrono::milliseconds(50);
  std::string reason;
  do {
    const Addresses found = resolve(address, port, false);
    for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
      if (FileHandle file = try_connect(*one, static_cast<int>(std::clamp<long>(left, 1, 5000)))) {
        send_at_once(file.get());
        return file;
      }
      reason = std::strerror(errno);
    }
    std::this_thread::sleep_for(kPause);
  } while (Clock::now() < deadline);
  throw Error(ErrorCode::timeout, "rank 0 does not answer at " + place(address, port) + ": " + reason +
                                      "; check that rank 0 was started, and check the master address and port");
}

FileHandle accept_from(const FileHandle& listener) {
  FileHandle file(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (file) send_at_once(file.get());
  return file;
}

WakeUp::WakeUp() : file_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!file_) throw Error(ErrorCode::device, std::string("cannot create an eventfd: ") + std::strerror(errno));
}

void WakeUp::raise() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(file_.get(), &one, sizeof one);
}

void WakeUp::clear() const {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto got = ::read(file_.get(), &count, sizeof count);
}

namespace {

struct Header {
  std::uint64_t number;
  std::uint32_t length;
  std::uint32_t kind;
};

template <typename T>
void append(std::string& to, const T& value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace

void Connection::send(const Message& message) {
  if (sent_ == out_.size()) out_.clear(), sent_ = 0;
  append(out_, Header{message.number, static_cast<std::uint32_t>(message.body.size()),
                      static_cast<std::uint32_t>(message.kind)});
  out_ += message.body;
  flush();
}

bool Connection::flush() {
  while (unsent()) {
    const ssize_t sent = ::send(file_.get(), out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0)
      sent_ += static_cast<std::size_t>(sent);
    else if (errno == EAGAIN || errno == EWOULDBLOCK)
      return false;
    else if (errno != EINTR) {
      deaf_ = true;
      ::shutdown(file_.get(), SHUT_WR);  // a message is lost, so the peer must not wait for it
    }
  }
  return true;
}

bool Connection::read(std::size_t most) {
  char block[16384];
  while (in_.size() - taken_ <= most) {
    const ssize_t got = ::recv(file_.get(), block, sizeof block, MSG_DONTWAIT);
    if (got > 0)
      in_.append(block, static_cast<std::size_t>(got));
    else if (got == 0)
      return false;
    else if (errno == EAGAIN || errno == EWOULDBLOCK)
      return true;
    else if (errno != EINTR)
      return false;
  }
  return true;
}

std::optional<Message> Connection::next(std::size_t longest) {
  Header header;
  if (in_.size() - taken_ < sizeof header) {
    in_.erase(0, std::exchange(taken_, 0));
    return std::nullopt;
  }
  std::memcpy(&header, in_.data() + taken_, sizeof header);
  if (header.kind > static_cast<std::uint32_t>(Kind::bye)) throw std::runtime_error("a message of unknown kind");
  if (header.length > longest) throw std::runtime_error("a message that is too long");
  if (in_.size() - taken_ < sizeof header + header.length) return std::nullopt;
  Message message{static_cast<Kind>(header.kind), header.number, in_.substr(taken_ + sizeof header, header.length)};
  taken_ += sizeof header + header.length;
  return message;
}

std::string join(const std::vector<std::string>& parts) {
  std::string joined;
  for (const std::string& part : parts) {
    append(joined, static_cast<std::uint32_t>(part.size()));
    joined += part;
  }
  return joined;
}

std::vector<std::string> split(const std::string& joined) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at < joined.size();) {
    std::uint32_t length = 0;
    if (joined.size() - at < sizeof length) throw std::runtime_error("a truncated list");
    std::memcpy(&length, joined.data() + at, sizeof length);
    at += sizeof length;
    if (joined.size() - at < length) throw std::runtime_error("a truncated list");
    parts.push_back(joined.substr(at, length));
    at += length;
  }
  return parts;
}

}  // namespace dp::process_group
