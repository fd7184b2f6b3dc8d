// Writing so that a kill or a power loss leaves the old or the new, whole. Every function throws Error(io) with path
// and reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/file_handle.h"

namespace dp {

// Makes a new file; the name must be free.
class FileWriter {
 public:
  explicit FileWriter(const std::string& path);
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void finish();  // to the disk, and closed

  const std::string& path() const { return path_; }
  std::uint64_t bytes() const { return bytes_; }
  std::uint32_t crc() const { return crc_; }  // crc32c of everything written

 private:
  std::string path_;
  FileHandle file_;
  std::uint64_t bytes_ = 0;
  std::uint32_t crc_ = 0;
};

// Where `path` lies. "run/last/" is {"run", "last"}, "last" is {".", "last"}. Error(usage) when the path has no name at
// its end.
struct PathParts {
  std::string parent, name;
  std::string sibling(const std::string& other) const { return parent + "/" + other; }
  std::string path() const { return sibling(name); }
};
PathParts split_path(const std::string& path);

// A free path beside `target`: ".<name>.<tag>-<pid>-<n>", n counting up in this process.
std::string temporary_sibling(const PathParts& target, const char* tag);

void sync_file(const std::string& path);
void sync_folder(const std::string& path);
// Puts a file in place of whatever file stood at `path`, by a temporary sibling that `fill` writes.
void replace_file(const std::string& path, const std::function<void(FileWriter&)>& fill);
// Removes the temporary files that killed calls of replace_file left beside `path`. The caller ensures that no such call is running. Files that
// cannot be removed are left in place.
void remove_unfinished(const std::string& path) noexcept;
// Removes a file, link or folder with all in it, following no link. False when something stayed. Never throws.
bool remove_tree(const std::string& path) noexcept;

}  // namespace dp
