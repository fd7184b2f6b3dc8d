#include "kernels/comm/tcp_wire.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "kernels/comm/tcp_flow.h"
#include "kernels/comm/tcp_mesh.h"

namespace dp::kernels {
namespace {

constexpr int kLook = 20;                                    // milliseconds between checks of the abort flag
constexpr std::size_t kAtOnce = 512 * 1024;                  // bytes before the next rank is served
constexpr auto kLastWords = std::chrono::milliseconds(500);  // to send headers after a call mismatch
constexpr auto kCause = std::chrono::seconds(2);             // to find out why a rank is gone
using Clock = std::chrono::steady_clock;

class TcpWire final : public Wire {
 public:
  TcpWire(Rendezvous& rendezvous, const AbortFlag* abort)
      : rank_(rendezvous.rank()),
        size_(rendezvous.size()),
        bell_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        sockets_(connect_all(rendezvous, abort)),
        flow_("tcp", rank_, size_),
        polled_(static_cast<std::size_t>(size_) + 1) {
    if (!bell_)
      throw Error(ErrorCode::device, "cannot create an eventfd for communicator tcp (" + describe_errno(errno) + ")");
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string name() const override { return "tcp"; }

  void run(const WireJob& job, const Halt& halt) override {
    try {
      move(job, halt);
    } catch (...) {
      for (const Descriptor& socket : sockets_)  // other ranks see the end of the stream at once
        if (socket) shutdown(socket.get(), SHUT_WR);
      throw;
    }
  }

  std::int64_t bytes_sent() const override { return flow_.bytes_sent(); }

  void wake() override {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(bell_.get(), &one, sizeof one);
  }

 private:
  void move(const WireJob& job, const Halt& halt) {
    flow_.begin(job);
    while (true) {
      bool moved = false;
      try {
        for (int peer = 0; peer < size_; ++peer)
          if (peer != rank_) moved |= send_some(peer, halt) | receive_some(peer, halt);
      } catch (const Error& error) {
        if (error.code() == ErrorCode::usage) tell_calls(halt);
        throw;
      }
      if (flow_.done()) return;
      if (halt.asked()) throw Aborted();
      if (!moved) wait();
    }
  }

  bool send_some(int peer, const Halt& halt) {
    std::size_t total = 0;
    while (total < kAtOnce) {
      const auto bytes = flow_.to_send(peer);
      if (bytes.empty()) break;
      const Moved moved = try_send(socket(peer), bytes.first(std::min(bytes.size(), kAtOnce)));
      if (moved.over) gone(peer, moved, halt);
      if (moved.bytes == 0) break;
      flow_.sent(peer, moved.bytes);
      total += moved.bytes;
    }
    return total > 0;
  }

  bool receive_some(int peer, const Halt& halt) {
    std::size_t total = 0;
    while (total < kAtOnce) {
      const auto bytes = flow_.to_receive(peer);
      if (bytes.empty()) break;
      const Moved moved = try_receive(socket(peer), bytes);
      if (moved.over) gone(peer, moved, halt);
      if (moved.bytes == 0) break;
      flow_.received(peer, moved.bytes);
      total += moved.bytes;
    }
    return total > 0;
  }

  // Returns when bytes can be transferred, after wake(), or after kLook.
  void wait() {
    polled_[0] = {bell_.get(), POLLIN, 0};
    for (int peer = 0; peer < size_; ++peer) {
      pollfd& one = polled_[static_cast<std::size_t>(peer) + 1];
      one = {-1, 0, 0};
      if (peer == rank_) continue;
      if (!flow_.to_receive(peer).empty()) one.events |= POLLIN;
      if (!flow_.to_send(peer).empty()) one.events |= POLLOUT;
      if (one.events != 0) one.fd = socket(peer).get();
    }
    poll(polled_.data(), polled_.size(), kLook);
  }

  // Called after this rank found a mismatched call. Sends its header to all ranks, so that they report the mismatch and
  // not a lost connection.
  void tell_calls(const Halt& halt) {
    const auto deadline = Clock::now() + kLastWords;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      while (!flow_.sent_call_to(peer) && Clock::now() < deadline && !halt.asked()) {
        const Moved moved = try_send(socket(peer), flow_.to_send(peer));
        if (moved.over) break;
        flow_.sent(peer, moved.bytes);
        pollfd one{socket(peer).get(), POLLOUT, 0};
        if (moved.bytes == 0) poll(&one, 1, kLook);
      }
    }
  }

  // Finds the cause of a closed connection. A rank closes its connections when it fails. If a third rank made a
  // different call, its header arrives here and received() throws that error. Any other failure raises the abort flag,
  // and this throws Aborted. After kCause the lost connection itself is reported.
  [[noreturn]] void gone(int peer, const Moved& moved, const Halt& halt) {
    pollfd bell{bell_.get(), POLLIN, 0};
    for (const auto until = Clock::now() + kCause; Clock::now() < until; poll(&bell, 1, kLook)) {
      if (halt.asked()) throw Aborted();
      for (int other = 0; other < size_; ++other) {
        if (other == rank_ || flow_.received_call_of(other)) continue;
        const Moved more = try_receive(socket(other), flow_.to_receive(other));
        if (!more.over) flow_.received(other, more.bytes);
      }
    }
    throw Error(ErrorCode::device, "communicator tcp, rank " + std::to_string(rank_) +
                                       ": lost the connection to rank " + std::to_string(peer) + " (" +
                                       (moved.error == 0 ? "closed by that rank" : describe_errno(moved.error)) +
                                       "); see the output of that rank");
  }

  const Descriptor& socket(int peer) const { return sockets_[static_cast<std::size_t>(peer)]; }

  const int rank_, size_;
  Descriptor bell_;
  std::vector<Descriptor> sockets_;
  TcpFlow flow_;
  std::vector<pollfd> polled_;
};

}  // namespace

std::unique_ptr<Wire> make_tcp_wire(Rendezvous& rendezvous, const AbortFlag* abort) {
  return std::make_unique<TcpWire>(rendezvous, abort);
}

}  // namespace dp::kernels
