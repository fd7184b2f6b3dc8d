// Ports for tests that run at the same time.
#pragma once

#include <unistd.h>

#include <string>

#include "dp/error.h"
#include "engine/base/files.h"
#include "engine/process_group/connection.h"

namespace dp::test {

// A port that is free now. The system never chooses one of this range by itself, so that no other program takes it
// until the test uses it; each process begins its search elsewhere.
inline std::string free_port() {
  constexpr int kFirst = 20000, kCount = 10000;
  static int next = static_cast<int>(::getpid()) * 61 % kCount;
  while (true) {
    const int port = kFirst + next;
    next = (next + 1) % kCount;
    try {
      const FileHandle listener = process_group::listen_on("127.0.0.1", port);
      return std::to_string(port);
    } catch (const Error&) {  // in use
    }
  }
}

}  // namespace dp::test
