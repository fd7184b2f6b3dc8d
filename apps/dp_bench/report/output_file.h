// A result file. It is opened before measuring, so that an unusable path fails early, and written afterwards.
#pragma once

#include <string>

namespace dp_bench {

class OutputFile {
 public:
  // Empty path: no file. The old content stays until write(). dp::Error(io) if the path cannot be opened for writing,
  // or is a pipe without a reader.
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
