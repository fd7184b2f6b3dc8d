// One file from one address.
#pragma once

#include <dp/error.h>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace dp_train {

struct Download {
  std::string url;      // http or https
  std::string file;     // receives the bytes; those that it already has are not requested again
  std::uint64_t bytes;  // of the whole file, which is gzip
  int patience;         // seconds to connect, and seconds of less than 1 kB/s, after which the server is given up
  const std::atomic<int>& stop;
  std::function<void(std::uint64_t done, double bytes_per_second)> progress;
};

struct Failure {
  dp::ErrorCode code;  // io, or data if the server sent something else than the file
  std::string reason;
};

// None if `file` now has all bytes, synced, or if `stop` is not 0. What `file` has after a failure is part of the
// file, unless the server lied. Error(io) if `file` cannot be written.
std::optional<Failure> download(const Download& what);

}  // namespace dp_train
