// A file for results, opened before the measuring and written after it.
#pragma once

#include <string>

namespace dp_bench {

class OutputFile {
 public:
  // An empty path: none. dp::Error(io) where it can not be opened to write, or is a pipe that nobody reads. What it holds stays until write().
  explicit OutputFile(std::string path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const std::string& text);  // dp::Error(io)

 private:
  [[noreturn]] void fail(int error) const;
  std::string path_;
  int file_ = -1;
};

}  // namespace dp_bench
