// Where the files of a tar archive are, so that they can be read in any order.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dp/error.h"

namespace dp {

// Reads pieces of a file at any offset. Error(data) unless it is a regular file, and if a piece is not there.
class PieceReader {
 public:
  explicit PieceReader(const std::string& path);
  ~PieceReader();
  PieceReader(const PieceReader&) = delete;
  PieceReader& operator=(const PieceReader&) = delete;

  void read(std::uint64_t begin, std::span<std::uint8_t> out) const;
  std::uint64_t size() const { return size_; }  // at the time of opening
  Error bad(std::uint64_t at, const std::string& what) const;

 private:
  std::string path_;
  std::uint64_t size_;
  int descriptor_;
};

struct TarEntry {
  std::string name;
  std::uint64_t begin = 0, bytes = 0;  // of the file's contents, in the archive
};

// The regular files of an archive in POSIX's formats ustar and pax, or GNU's with long names, in their order. Folders,
// links and other kinds are left out. Error(data), with the offset, for damaged headers, for a compressed archive, and
// for contents beyond the end.
std::vector<TarEntry> list_tar(const std::string& path);

}  // namespace dp
