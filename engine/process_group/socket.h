// TCP sockets, as much of them as the world needs.
#pragma once

#include <chrono>
#include <string>

#include "engine/base/file_handle.h"

namespace dp::process_group {

using Clock = std::chrono::steady_clock;

// Listens on that address and no other; port 0: one of the system's choice. Error(usage) for an address that is not this
// host's or a port that is taken.
FileHandle listen_on(const std::string& address, int port);
int port_of(const FileHandle& socket);  // own end

// Tries until `deadline`. Error(timeout) saying what the last try gave.
FileHandle connect_to(const std::string& address, int port, Clock::time_point deadline);
// A connection that waits at the listener; none there: an empty handle.
FileHandle accept_from(const FileHandle& listener);

std::string own_address(const FileHandle& connection);  // numeric, of this end

// A descriptor that wakes a poll(): readable once raised.
class WakeUp {
 public:
  WakeUp();
  int descriptor() const { return file_.get(); }
  void raise() const;
  void clear() const;

 private:
  FileHandle file_;
};

}  // namespace dp::process_group
