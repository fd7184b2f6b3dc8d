#include "kernels/comm/tcp_mesh.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cstring>
#include <sstream>

namespace dp::kernels {
namespace {

constexpr std::size_t kSecret = 32;                     // characters
constexpr std::size_t kRank = 8;                        // digits
constexpr std::size_t kGreeting = 4 + kRank + kSecret;  // "dp1 ", the sender's rank, the receiver's secret
constexpr std::size_t kMostStrangers = 64;              // unauthenticated connections; beyond that the oldest is closed
constexpr auto kPatience = std::chrono::seconds(10);    // limit for an unauthenticated connection
constexpr int kLook = 50;                               // milliseconds between checks of the abort flag
using Clock = std::chrono::steady_clock;
using Greeting = std::array<char, kGreeting>;

struct Place {
  std::string address;
  int port = 0;
  std::string secret;
};

Greeting greeting(int rank, const std::string& secret) {
  std::string number = std::to_string(rank);
  number.insert(0, kRank - number.size(), '0');
  const std::string text = "dp1 " + number + secret;
  Greeting bytes;
  std::memcpy(bytes.data(), text.data(), kGreeting);
  return bytes;
}

// Constant-time comparison.
bool same(const char* a, const char* b, std::size_t bytes) {
  unsigned different = 0;
  for (std::size_t i = 0; i < bytes; ++i) different |= static_cast<unsigned>(a[i] ^ b[i]);
  return different == 0;
}

// A connection until both sides are authenticated.
struct Opening {
  Descriptor socket;
  int rank = -1;  // -1: an unknown peer that connected to this rank
  Clock::time_point since;
  Greeting out{}, in{};
  std::size_t sent = 0, received = 0;
  bool speaks() const { return rank >= 0; }
  bool closed = false;
};

class Mesh {
 public:
  Mesh(Rendezvous& rendezvous, const AbortFlag* abort)
      : rendezvous_(rendezvous), abort_(abort), peers_(static_cast<std::size_t>(rendezvous.size())) {}

  std::vector<Descriptor> connect() {
    listener_ = listen_at(rendezvous_.own_address(), rendezvous_.size() + static_cast<int>(kMostStrangers));
    tell_places();
    for (int rank = 0; rank < rendezvous_.rank(); ++rank) {
      const Place& place = places_[static_cast<std::size_t>(rank)];
      Opening opening{connect_to(place.address, place.port), rank, Clock::now()};
      opening.out = greeting(rendezvous_.rank(), place.secret);
      openings_.push_back(std::move(opening));
    }
    const auto deadline = Clock::now() + std::chrono::duration<double>(rendezvous_.timeout_seconds());
    while (missing() > 0) {
      if (abort_ != nullptr && abort_->load(std::memory_order_acquire)) throw Aborted();
      if (Clock::now() > deadline) throw Error(ErrorCode::timeout, late());
      wait();
    }
    return std::move(peers_);
  }

 private:
  void tell_places() {
    const std::string secret = random_secret();
    const auto all =
        rendezvous_.exchange(rendezvous_.own_address() + " " + std::to_string(listener_.port) + " " + secret);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      Place place;
      std::istringstream text(all[rank]);
      if (!(text >> place.address >> place.port >> place.secret) || place.secret.size() != kSecret)
        throw Error(ErrorCode::device, "rank " + std::to_string(rank) + " sent no valid address to communicator tcp (" +
                                           std::to_string(all[rank].size()) +
                                           " bytes); do all ranks run the same program?");
      places_.push_back(std::move(place));
    }
  }

  int missing() const {
    int count = 0;
    for (int rank = 0; rank < rendezvous_.size(); ++rank)
      count += rank != rendezvous_.rank() && !peers_[static_cast<std::size_t>(rank)];
    return count;
  }

  std::string late() const {
    std::string text;
    for (int rank = 0; rank < rendezvous_.size(); ++rank)
      if (rank != rendezvous_.rank() && !peers_[static_cast<std::size_t>(rank)])
        text += (text.empty() ? "" : ", ") + std::to_string(rank) + " at " +
                places_[static_cast<std::size_t>(rank)].address;
    std::ostringstream seconds;
    seconds << rendezvous_.timeout_seconds();
    return "rank " + std::to_string(rendezvous_.rank()) + " of communicator tcp has no connection to rank " + text +
           " after " + seconds.str() + " s; does a firewall block it?";
  }

  void wait() {
    polled_.assign(1, {listener_.socket.get(), POLLIN, 0});
    for (const Opening& one : openings_) {
      const bool sends = one.speaks() && one.sent < kGreeting;
      polled_.push_back({one.socket.get(), static_cast<short>(sends ? POLLOUT : POLLIN), 0});
    }
    if (poll(polled_.data(), polled_.size(), kLook) < 0) return;
    for (std::size_t i = 0; i < openings_.size(); ++i)
      if (polled_[i + 1].revents != 0) advance(openings_[i]);
    if ((polled_[0].revents & POLLIN) != 0) accept_one();
    const auto now = Clock::now();
    std::erase_if(openings_, [&](const Opening& one) {
      return one.closed || (one.received < kGreeting && !one.speaks() && now - one.since > kPatience);
    });
  }

  void accept_one() {
    Descriptor socket(accept4(listener_.socket.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) return;
    std::size_t strangers = 0;
    for (const Opening& one : openings_) strangers += !one.speaks();
    if (strangers == kMostStrangers)
      for (Opening& one : openings_)
        if (!one.speaks()) {
          one.closed = true;
          break;
        }
    openings_.push_back({std::move(socket), -1, Clock::now()});
  }

  void advance(Opening& one) {
    if (one.speaks() && one.sent < kGreeting) {
      const Moved moved = try_send(one.socket, std::span<const char>(one.out).subspan(one.sent));
      if (moved.over) return lose(one, moved);
      one.sent += moved.bytes;
      if (one.sent < kGreeting || one.received < kGreeting) return;
    }
    if (one.received < kGreeting) {
      const Moved moved = try_receive(one.socket, std::span<char>(one.in).subspan(one.received));
      if (moved.over) return lose(one, moved);
      one.received += moved.bytes;
      if (one.received < kGreeting) return;
      if (!knows_us(one)) return refuse(one);
      if (!one.speaks()) {  // the next advance() sends the answer
        one.rank = announced_rank(one);
        one.out = greeting(rendezvous_.rank(), places_[static_cast<std::size_t>(one.rank)].secret);
        return;
      }
    }
    tune(one.socket);
    peers_[static_cast<std::size_t>(one.rank)] = std::move(one.socket);
    one.closed = true;
  }

  int announced_rank(const Opening& one) const {
    int rank = -1;
    const char* const digits = one.in.data() + 4;
    const auto [end, error] = std::from_chars(digits, digits + kRank, rank);
    return error == std::errc() && end == digits + kRank ? rank : -1;
  }

  bool knows_us(const Opening& one) const {
    const std::string& secret = places_[static_cast<std::size_t>(rendezvous_.rank())].secret;
    if (!same(one.in.data() + 4 + kRank, secret.data(), kSecret) || std::memcmp(one.in.data(), "dp1 ", 4) != 0)
      return false;
    const int rank = announced_rank(one);
    if (one.speaks()) return rank == one.rank;
    if (rank <= rendezvous_.rank() || rank >= rendezvous_.size() || peers_[static_cast<std::size_t>(rank)])
      return false;
    for (const Opening& other : openings_)
      if (&other != &one && other.rank == rank) return false;
    return true;
  }

  // For connections that this rank opened. The address is the one that the peer published, hence a failure is an error.
  [[noreturn]] void give_up(const Opening& one, const std::string& why) const {
    const Place& place = places_[static_cast<std::size_t>(one.rank)];
    throw Error(ErrorCode::device, "rank " + std::to_string(rendezvous_.rank()) + " cannot connect to rank " +
                                       std::to_string(one.rank) + " at " + place.address + " port " +
                                       std::to_string(place.port) + ": " + why);
  }
  bool we_connected(const Opening& one) const { return one.speaks() && one.rank < rendezvous_.rank(); }

  void refuse(Opening& one) const {
    if (we_connected(one)) give_up(one, "another program answers there");
    one.closed = true;
  }
  void lose(Opening& one, const Moved& moved) const {
    if (we_connected(one)) give_up(one, moved.error == 0 ? "it closed the connection" : describe_errno(moved.error));
    one.closed = true;
  }

  Rendezvous& rendezvous_;
  const AbortFlag* abort_;
  TcpListener listener_;
  std::vector<Place> places_;
  std::vector<Opening> openings_;
  std::vector<Descriptor> peers_;
  std::vector<pollfd> polled_;
};

}  // namespace

std::vector<Descriptor> connect_all(Rendezvous& rendezvous, const AbortFlag* abort) {
  return Mesh(rendezvous, abort).connect();
}

}  // namespace dp::kernels
