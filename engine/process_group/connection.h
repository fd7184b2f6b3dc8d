// Sockets, authentication and messages between two ranks.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/files.h"

namespace dp::process_group {

std::string drawn_token();  // 128 random bits of the system as 32 hexadecimal digits

// TCP sockets for process groups.

using Clock = std::chrono::steady_clock;

// Listens on this address only. Port 0: the system chooses one. Error(usage) if the address is not one of this host or
// the port is in use; Error(device) if its name cannot be looked up now.
FileHandle listen_on(const std::string& address, int port);
int port_of(const FileHandle& socket);  // local port

// Retries until `deadline`. Error(timeout) with the reason of the last attempt. Error(usage) if the name of the address
// is wrong, Error(device) if it cannot be looked up now.
FileHandle connect_to(const std::string& address, int port, Clock::time_point deadline);
// Accepts a pending connection. Returns an empty handle if no connection is pending.
FileHandle accept_from(const FileHandle& listener);

// An eventfd that wakes a poll(): readable after raise(), until clear().
class WakeUp {
 public:
  WakeUp();
  int descriptor() const { return file_.get(); }
  void raise() const;
  void clear() const;

 private:
  FileHandle file_;
};

// Messages over a non-blocking socket.

enum class Kind : std::uint8_t {
  hello,     // rank to rank 0: who it is, see Hello
  refused,   // rank 0 to a rank: why it cannot join
  welcome,   // rank 0 to all: every rank has joined; their Hellos without tokens
  give,      // rank to rank 0: its part of an exchange
  everyone,  // rank 0 to all: all parts of an exchange
  fail,      // the failure that ends the group: rank to rank 0, then rank 0 to all
  roll,      // rank to rank 0: request for `silent`; rank 0 to all: request for `here`
  here,      // rank to rank 0: answer to `roll`
  silent,    // rank 0 to the requesting ranks: the ranks that did not answer
  busy,      // rank to rank 0: busy (1) or no longer (0); rank 0 to all: wait longer, a rank is or was busy
  accepted,  // rank 0 to a rank: its Hello is accepted, other ranks are missing
  rejected,  // rank 0 to the accepted ranks: which process it refused, and why
  bye,       // rank to rank 0: its last message; the last kind
};

struct Message {
  Kind kind = Kind::hello;
  std::uint64_t number = 0;  // of the exchange (give, everyone) or the roll call (roll, here); busy: 1 or 0
  std::string body{};
};

class Connection {
 public:
  explicit Connection(FileHandle file) : file_(std::move(file)) {}

  int descriptor() const { return file_.get(); }
  const FileHandle& file() const { return file_; }

  void send(const Message& message);  // queues the message and sends what the socket accepts
  bool flush();                       // sends queued bytes; true if none are left or the peer no longer reads
  bool unsent() const { return !deaf_ && sent_ < out_.size(); }

  // Receives available bytes until about `most` bytes wait for next(). False if the connection has ended.
  bool read(std::size_t most);
  // Returns the next complete message, if any. Throws std::runtime_error if its kind is unknown or its body is longer
  // than `longest` bytes.
  std::optional<Message> next(std::size_t longest);

 private:
  FileHandle file_;
  std::string in_, out_;
  std::size_t taken_ = 0, sent_ = 0;
  bool deaf_ = false;  // the peer no longer reads
};

// Packs several texts into one, and back. split() throws std::runtime_error for malformed input.
std::string join(const std::vector<std::string>& parts);
std::vector<std::string> split(const std::string& joined);

}  // namespace dp::process_group
