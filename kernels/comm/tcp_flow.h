// The algorithms of the communicator "tcp", without sockets: which bytes of a call this rank exchanges with which rank,
// and when.
//
// In each direction between two ranks, a call is a header, which the ranks compare, and up to two phases.
// Reductions: in phase 1 every rank sends its values of a slice to the slice's owner, in pieces; a piece holds all
// summands in sequence. In phase 2 the owner sends its results to the ranks that need them, while later pieces still
// arrive.
// Broadcasts: in phase 1 the root sends each slice to its owner. In phase 2 the owners send their slices to the other
// ranks.
// Other calls have one phase.
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
  // to_send() returns the bytes that can be sent to `peer` now. to_receive() returns the memory for the next bytes from
  // `peer`. Both are empty if nothing can be transferred now. Report transferred bytes with sent() and received().
  std::span<const char> to_send(int peer);
  std::span<char> to_receive(int peer);
  void sent(int peer, std::size_t bytes);
  // Error(usage) if the peer makes a different call, Error(device) if it is at another call number.
  void received(int peer, std::size_t bytes);

  bool sends_more(int peer) const { return transfer(peer).out < transfer(peer).out_bytes; }
  bool expects_more(int peer) const { return transfer(peer).in < transfer(peer).in_bytes; }
  bool received_call_of(int peer) const { return transfer(peer).in >= kHeader; }
  bool sent_call_to(int peer) const { return transfer(peer).out >= kHeader; }
  bool done() const;
  std::int64_t bytes_sent() const { return bytes_sent_; }  // in all calls, without headers

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
  static constexpr std::size_t kWindow = 8;         // pieces that a rank may send ahead of the slowest rank

  struct Transfer {  // transfers with one rank, in bytes; out, in, out_bytes and in_bytes include the header
    std::size_t out = 0, out_bytes = 0, out_first = 0;
    std::size_t in = 0, in_bytes = 0, in_first = 0;
    char* out_begin = nullptr;  // data of phase 1; unused in reductions
    char* in_begin = nullptr;
    Header theirs{};
    std::vector<char> window;  // reductions: the rank's pieces until they are added
  };
  Transfer& transfer(int rank) { return transfers_[static_cast<std::size_t>(rank)]; }
  const Transfer& transfer(int rank) const { return transfers_[static_cast<std::size_t>(rank)]; }

  char* at(std::int64_t element) const { return static_cast<char*>(job_->data) + element * element_; }
  std::size_t bytes_of(const Range& range) const { return static_cast<std::size_t>(range.size() * element_); }
  std::size_t part_offset(int rank) const;
  void plan(int peer);
  void plan_first(int peer);
  bool has_second(int from, int to) const;  // whether `from` sends its slice to `to` in phase 2

  std::span<const char> send_values(int peer, std::size_t done);
  std::span<char> window_room(int peer, std::size_t done);
  // Bytes of one summand in this piece.
  std::size_t piece_bytes(std::size_t piece) const;
  std::size_t pieces_from(int peer) const;  // complete pieces received
  void sum_arrived();
  template <typename T>
  void sum_piece(std::size_t piece);
  // Only the root's data may change in a reduce, hence other ranks keep their results in results_.
  bool results_in_ring() const { return job_->call.kind == Collective::reduce && rank_ != job_->call.root; }
  std::size_t second_ready() const;  // bytes of the own slice that phase 2 can send now
  const char* second_source(std::size_t done) const;

  const std::string name_;
  const int rank_, size_;
  std::vector<Transfer> transfers_;
  const WireJob* job_ = nullptr;
  bool sums_ = false;
  std::int64_t element_ = 1;  // size in bytes
  std::size_t summands_ = 1;
  Range own_;  // elements that this rank owns
  Header header_{};
  std::size_t summed_ = 0, pieces_ = 0;  // pieces of the own slice: added, in total
  std::vector<char> results_;            // reduce, except at the root: ring of kWindow unsent result pieces
  std::vector<void*> parts_;             // scratch of sum_piece()
  std::int64_t bytes_sent_ = 0;
};

}  // namespace dp::kernels
