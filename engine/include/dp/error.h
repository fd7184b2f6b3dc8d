// The only exception type. Each kind of failure has its process exit code.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace dp {

// The numeric values are the exit codes of the programs.
enum class ErrorCode {
  usage = 2,      // an invalid request: flag, id or shape
  data = 3,       // a dataset or checkpoint is missing, truncated, corrupt or malicious
  device = 4,     // no such device, out of device memory, a failed launch
  nonfinite = 5,  // NaN or Inf in the loss or the gradients
  timeout = 6,    // a device or a collective stalled, or a rank did not join
  io = 7,         // disk full, no permission, a failed write
};

const char* to_string(ErrorCode code);

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  Error(ErrorCode code, const std::string& message, std::vector<std::string> others)
      : std::runtime_error(message), code_(code), others_(std::move(others)) {}

  ErrorCode code() const { return code_; }
  // Errors of the other devices if several failed in one step; what() is that of the lowest device.
  const std::vector<std::string>& others() const { return others_; }

 private:
  ErrorCode code_;
  std::vector<std::string> others_;
};

}  // namespace dp
