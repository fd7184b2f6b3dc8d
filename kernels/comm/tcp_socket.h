// Non-blocking sockets of the communicator "tcp". Descriptors are owned; addresses are numeric.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>

namespace dp::kernels {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor();
  int get() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }

 private:
  int number_ = -1;
};

struct TcpListener {
  Descriptor socket;
  int port = 0;
};
// Listens on this address only, on a port that the system chooses. Error(device).
TcpListener listen_at(const std::string& address, int backlog);
// Starts a connection, which may not be established yet on return. Error(device).
Descriptor connect_to(const std::string& address, int port);
// Disables Nagle's algorithm. Enables TCP keep-alive, which detects a vanished host after about 90 s.
void tune(const Descriptor& socket);

// Result of an attempt to transfer bytes: the bytes transferred (0: none now), or the end of the connection.
struct Moved {
  std::size_t bytes = 0;
  bool over = false;
  int error = 0;  // errno if `over`; 0: closed by the other side
};
Moved try_send(const Descriptor& socket, std::span<const char> bytes);
Moved try_receive(const Descriptor& socket, std::span<char> bytes);

std::string random_secret();  // 32 hexadecimal digits from getrandom()
std::string describe_errno(int error);

}  // namespace dp::kernels
