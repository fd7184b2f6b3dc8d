// A file to which whole records are appended.
#pragma once

#include <string>

namespace dp {

class AppendFile {
 public:
  enum class Open { existing_or_new, new_only };

  AppendFile() = default;  // append() does nothing
  // Does not follow a symbolic link. Error(io).
  AppendFile(const std::string& path, Open how);
  ~AppendFile();
  AppendFile(AppendFile&& other) noexcept { *this = std::move(other); }
  AppendFile& operator=(AppendFile&& other) noexcept;

  void keep(std::size_t bytes);          // truncates; the next record follows. Error(io)
  void append(const std::string& text);  // all of it or nothing, without a sync. Error(io)

 private:
  std::string path_;
  int fd_ = -1;
};

}  // namespace dp
