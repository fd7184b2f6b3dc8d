// Redirects the standard output or error of the test.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <string>

namespace dp::test {

// While this object exists, a standard descriptor writes to a file or a terminal.
class OutputInto {
 public:
  OutputInto(int descriptor, const std::string& file) : descriptor_(descriptor), before_(::dup(descriptor)) {
    std::fflush(nullptr);
    const int other = ::open(file.c_str(), O_CREAT | O_WRONLY | O_NOCTTY, 0600);
    ::dup2(other, descriptor_);
    ::close(other);
  }
  ~OutputInto() {
    std::fflush(nullptr);
    ::dup2(before_, descriptor_);
    ::close(before_);
  }
  OutputInto(const OutputInto&) = delete;
  OutputInto& operator=(const OutputInto&) = delete;

 private:
  int descriptor_, before_;
};

}  // namespace dp::test
