// Starts a thread. Error(device) if that fails; its message names the thread by `name`, as in "that listens to rank 0".
#pragma once

#include <fmt/format.h>

#include <system_error>
#include <thread>
#include <utility>

#include "dp/error.h"

namespace dp::process_group {

template <typename Work>
std::thread start_thread(const char* name, Work work) {
  try {
    return std::thread(std::move(work));
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::device, fmt::format("the thread {} could not be started ({}); raise ulimit -u and -v", name,
                                               error.code().message()));
  }
}

}  // namespace dp::process_group
