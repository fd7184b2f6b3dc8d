// TCP sockets for process groups.
#pragma once

#include <chrono>
#include <string>

#include "engine/base/file_handle.h"

namespace dp::process_group {

using Clock = std::chrono::steady_clock;

// Listens on this address only. Port 0: the system chooses one. Error(usage) if the address is not one of this host or
// the port is in use.
FileHandle listen_on(const std::string& address, int port);
int port_of(const FileHandle& socket);  // local port

// Retries until `deadline`. Error(timeout) with the reason of the last attempt.
FileHandle connect_to(const std::string& address, int port, Clock::time_point deadline);
// Accepts a pending connection; returns an empty handle if there is none.
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

}  // namespace dp::process_group
