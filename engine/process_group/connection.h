// Messages over a socket that never blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/file_handle.h"

namespace dp::process_group {

enum class Kind : std::uint8_t {
  hello,     // a rank to rank 0: who it is
  refused,   // rank 0: why it may not join
  welcome,   // rank 0: everybody is there
  give,      // a rank's part of an exchange
  everyone,  // rank 0: all parts of it
  fail,      // why the world ends: from a rank, then from rank 0 to all
  roll,      // a rank: who does not answer? Rank 0 to all: are you there?
  here,      // a rank is
  silent,    // rank 0: the ranks that did not answer
  busy,      // a rank: it may be late from now on (1), or no longer (0). Rank 0 to all: somebody is, wait on
  bye,       // a rank has nothing more to say
};

struct Message {
  Kind kind = Kind::hello;
  std::uint64_t number = 0;  // give, everyone: of the exchange; roll, here: of the call
  std::string body{};
};

class Connection {
 public:
  explicit Connection(FileHandle file) : file_(std::move(file)) {}

  int descriptor() const { return file_.get(); }
  const FileHandle& file() const { return file_; }

  void send(const Message& message);  // queues it, and writes what can be written
  bool flush();                       // writes on; true when nothing is left or nobody reads any more
  bool unsent() const { return !deaf_ && sent_ < out_.size(); }

  // Takes what is there, but not much more than `most` that nobody has asked for with next(); false when the other end is gone.
  bool read(std::size_t most);
  // The next whole message. Throws std::runtime_error for one longer than `longest` or of no known kind.
  std::optional<Message> next(std::size_t longest);

 private:
  FileHandle file_;
  std::string in_, out_;
  std::size_t taken_ = 0, sent_ = 0;
  bool deaf_ = false;  // the other end does not read any more
};

// Several texts as one, and back. Throws std::runtime_error for what join() did not make.
std::string join(const std::vector<std::string>& parts);
std::vector<std::string> split(const std::string& joined);

}  // namespace dp::process_group
