#include "engine/process_group/connection.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace dp::process_group {
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
    else if (errno != EINTR)
      deaf_ = true;
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
