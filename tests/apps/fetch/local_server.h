// An HTTP server on this host, for one connection at a time.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/process_group/connection.h"

namespace dp::test {

struct Request {
  std::string path;
  std::optional<std::size_t> from;  // the first byte of its range
  std::string head{}, body{};
};

struct Reply {
  std::string body;
  std::string status = "200 OK";
  std::string headers{};                 // further ones, each with its line end
  std::size_t sent = std::string::npos;  // bytes of the body that are sent
  bool stalls = false;                   // the connection then stays open
};

// The requested range of a file.
inline Reply part_of(const std::string& file, const Request& request) {
  if (!request.from) return {file};
  if (*request.from >= file.size()) return {"", "416 Range Not Satisfiable"};
  return {file.substr(*request.from), "206 Partial Content",
          "Content-Range: bytes " + std::to_string(*request.from) + "-" + std::to_string(file.size() - 1) + "/" +
              std::to_string(file.size()) + "\r\n"};
}

class LocalServer {
 public:
  using Answer = std::function<Reply(const Request&)>;

  explicit LocalServer(Answer answer)
      : answer_(std::move(answer)), listener_(process_group::listen_on("127.0.0.1", 0)), thread_([this] { serve(); }) {}
  ~LocalServer() {
    ends_ = true;
    thread_.join();
  }
  LocalServer(const LocalServer&) = delete;
  LocalServer& operator=(const LocalServer&) = delete;

  std::string address() const { return "http://127.0.0.1:" + std::to_string(process_group::port_of(listener_)) + "/"; }
  std::vector<Request> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  // False after the end of the test.
  bool wait_for(const FileHandle& socket, short what) const {
    pollfd wanted{socket.get(), what, 0};
    while (!ends_)
      if (::poll(&wanted, 1, 20) > 0) return true;
    return false;
  }

  void serve() {
    while (wait_for(listener_, POLLIN))
      if (const FileHandle client = process_group::accept_from(listener_)) serve(client);
  }

  void serve(const FileHandle& client) {
    std::string text;
    char buffer[4096];
    while (!is_complete(text)) {
      if (!wait_for(client, POLLIN)) return;
      const ssize_t got = ::recv(client.get(), buffer, sizeof buffer, 0);
      if (got <= 0) return;
      text.append(buffer, static_cast<std::size_t>(got));
    }
    const Request request = parse(text);
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(request);
    }
    const Reply reply = answer_(request);
    text = "HTTP/1.1 " + reply.status + "\r\nContent-Length: " + std::to_string(reply.body.size()) +
           "\r\nConnection: close\r\n" + reply.headers + "\r\n" + reply.body.substr(0, reply.sent);
    for (std::size_t at = 0; at < text.size();) {
      if (!wait_for(client, POLLOUT)) return;
      const ssize_t sent = ::send(client.get(), text.data() + at, text.size() - at, MSG_NOSIGNAL);
      if (sent <= 0) return;
      at += static_cast<std::size_t>(sent);
    }
    if (reply.stalls) wait_for(client, POLLIN);  // until the client closes
  }

  static std::optional<std::size_t> number_after(const std::string& head, const std::string& field) {
    const auto at = head.find("\r\n" + field);
    if (at == std::string::npos) return std::nullopt;
    return std::stoul(head.substr(at + 2 + field.size()));
  }

  static bool is_complete(const std::string& text) {
    const auto end = text.find("\r\n\r\n");
    return end != std::string::npos && text.size() >= end + 4 + number_after(text, "Content-Length: ").value_or(0);
  }

  static Request parse(const std::string& text) {
    const auto end = text.find("\r\n\r\n"), path = text.find(' ') + 1;
    const std::string head = text.substr(0, end);
    return {text.substr(path, text.find(' ', path) - path), number_after(head, "Range: bytes="), head,
            text.substr(end + 4)};
  }

  Answer answer_;
  FileHandle listener_;
  mutable std::mutex mutex_;
  std::vector<Request> requests_;
  std::atomic<bool> ends_{false};
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace dp::test
