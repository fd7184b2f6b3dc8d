// Durable writes: after a kill or a power loss, a file has either its old or its new content. Unless stated otherwise,
// functions throw Error(io) with path and reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/file_handle.h"

namespace dp {

// Creates a new file; the path must not exist.
class FileWriter {
 public:
  explicit FileWriter(const std::string& path);
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void finish();  // fsync and close

  const std::string& path() const { return path_; }
  std::uint64_t bytes() const { return bytes_; }
  std::uint32_t crc() const { return crc_; }  // crc32c of all bytes written

 private:
  std::string path_;
  FileHandle file_;
  std::uint64_t bytes_ = 0;
  std::uint32_t crc_ = 0;
};

// Folder and name of a path: "run/last/" is {"run", "last"}, "last" is {".", "last"}. Error(usage) if the path does not
// end in a name.
struct PathParts {
  std::string parent, name;
  std::string sibling(const std::string& other) const { return parent + "/" + other; }
  std::string path() const { return sibling(name); }
};
PathParts split_path(const std::string& path);

// An unused path beside `target`: ".<name>.<tag>-<pid>-<n>"; n counts up in this process.
std::string temporary_sibling(const PathParts& target, const char* tag);

void sync_file(const std::string& path);
void sync_folder(const std::string& path);
int try_sync_folder(const std::string& path);  // returns errno on failure, else 0
// Replaces the file at `path` atomically. `fill` writes the new content to a temporary sibling.
void replace_file(const std::string& path, const std::function<void(FileWriter&)>& fill);
// Removes the temporary files beside `path` that killed calls of replace_file() left. The caller ensures that no
// replace_file() call is running. Files that cannot be removed are left in place.
void remove_unfinished(const std::string& path) noexcept;
// Removes a file, a link or a folder with its content; does not follow links. Returns false if anything is left. Never
// throws.
bool remove_tree(const std::string& path) noexcept;

}  // namespace dp
