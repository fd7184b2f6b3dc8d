// Sockets of the communicator "tcp": owned descriptors that never block, bound to one numeric address.
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
// At a port of the system's choice on that numeric address and no other. Error(device).
TcpListener listen_at(const std::string& address, int backlog);
// A connection that may still be under way. Error(device).
Descriptor connect_to(const std::string& address, int port);
// Small messages leave at once; a host that vanished is noticed some time.
void tune(const Descriptor& socket);

// What happened to a try to move bytes: how many moved, or none now, or the connection is over.
struct Moved {
  std::size_t bytes = 0;
  bool over = false;
  int error = 0;  // of errno, when it is over; 0: closed by the other side
};
Moved try_send(const Descriptor& socket, std::span<const char> bytes);
Moved try_receive(const Descriptor& socket, std::span<char> bytes);

std::string random_secret();  // 32 characters, from the system
std::string describe_errno(int error);

}  // namespace dp::kernels
