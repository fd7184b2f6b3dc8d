// Which bytes of a call go to and come from which rank, and when: the algorithms of the communicator "tcp", without a socket.
//
// In each direction between two ranks a call is a header (what is called, to compare) and up to two phases. Sums: first
// everybody's values of a slice go to its owner, in pieces, the summands of a piece after one another; then the owner's sums
// to those who want them, while later pieces arrive. Broadcasts: first the root deals out slices, then their owners pass them
// on. The rest has one phase.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "kernels/comm/wire.h"

namespace dp::kernels {

class TcpFlow {
 public:
  TcpFlow(std::string name, int rank, int size);

  void begin(const WireJob& job);
  // What can be sent to a rank now, and where what it sends belongs: empty when there is nothing now. Then how much was moved.
  std::span<const char> to_send(int peer);
  std::span<char> to_receive(int peer);
  void sent(int peer, std::size_t bytes);
  // Error(usage) when the peer makes another call.
  void received(int peer, std::size_t bytes);

  bool sends_more(int peer) const { return lane(peer).out < lane(peer).out_bytes; }
  bool expects_more(int peer) const { return lane(peer).in < lane(peer).in_bytes; }
  bool knows_call_of(int peer) const { return lane(peer).in >= kHeader; }
  bool told_call_to(int peer) const { return lane(peer).out >= kHeader; }
  bool done() const;
  std::int64_t bytes_sent() const { return bytes_sent_; }  // in all calls, headers left out

 private:
  struct Header {
    std::uint64_t number;
    std::uint64_t parts_hash;
    std::int64_t count;
    std::int32_t root, summands;
    std::uint8_t kind, type;
    std::uint8_t zero[6];
  };
  static constexpr std::size_t kHeader = sizeof(Header);
  static constexpr std::size_t kPiece = 64 * 1024;  // bytes of one summand
  static constexpr std::size_t kWindow = 8;         // pieces that a rank may be ahead of the slowest

  struct Lane {  // with one rank; bytes, the header's among them
    std::size_t out = 0, out_bytes = 0, out_first = 0;
    std::size_t in = 0, in_bytes = 0, in_first = 0;
    char* out_begin = nullptr;  // of the first phase; not of sums
    char* in_begin = nullptr;
    Header theirs{};
    std::vector<char> window;  // sums: their pieces, until they are added
  };
  Lane& lane(int rank) { return lanes_[static_cast<std::size_t>(rank)]; }
  const Lane& lane(int rank) const { return lanes_[static_cast<std::size_t>(rank)]; }

  char* at(std::int64_t element) const { return static_cast<char*>(job_->data) + element * element_; }
  std::size_t bytes_of(const Range& range) const { return static_cast<std::size_t>(range.size() * element_); }
  std::size_t part_offset(int rank) const;
  void plan(int peer);
  void plan_first(int peer);
  bool wants_second(int from, int to) const;  // the owner's slice, in the second phase

  std::span<const char> send_values(int peer, std::size_t done);
  std::span<char> window_room(int peer, std::size_t done);
  // Of a piece: bytes of one summand.
  std::size_t piece_bytes(std::size_t piece) const;
  std::size_t pieces_from(int peer) const;  // complete ones
  void sum_arrived();
  template <typename T>
  void sum_piece(std::size_t piece);
  // Sums that the caller's memory must not hold: a reduce's, where this is not the root.
  bool results_in_ring() const { return job_->call.kind == Collective::reduce && rank_ != job_->call.root; }
  std::size_t second_ready() const;  // bytes of the own slice that may go out
  const char* second_source(std::size_t done) const;

  const std::string name_;
  const int rank_, size_;
  std::vector<Lane> lanes_;
  const WireJob* job_ = nullptr;
  bool sums_ = false;
  std::int64_t element_ = 1;  // bytes
  std::size_t summands_ = 1;
  Range own_;  // elements that this rank owns
  Header header_{};
  std::size_t summed_ = 0, pieces_ = 0;  // of the own slice
  std::vector<char> results_;            // reduce, not at the root: sums until they are sent, kWindow pieces
  std::vector<void*> parts_;             // scratch of a sum
  std::int64_t bytes_sent_ = 0;
};

}  // namespace dp::kernels
