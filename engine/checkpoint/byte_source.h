// Input of a parser: a file, or bytes in memory (tests, fuzzing, a header before it is written).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "engine/base/file_handle.h"

namespace dp {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual const std::string& name() const = 0;  // for error messages
  virtual std::uint64_t size() const = 0;
  // Fills `out` from byte `offset`. The range must be within size(). Error(data) if it cannot be read.
  virtual void read(std::uint64_t offset, std::span<std::byte> out) = 0;
};

class MemorySource final : public ByteSource {
 public:
  MemorySource(std::string name, std::span<const std::byte> bytes) : name_(std::move(name)), bytes_(bytes) {}
  const std::string& name() const override { return name_; }
  std::uint64_t size() const override { return bytes_.size(); }
  void read(std::uint64_t offset, std::span<std::byte> out) override;

 private:
  std::string name_;
  std::span<const std::byte> bytes_;
};

// A regular file, open for the lifetime of this object. Error(data) for anything else.
class FileSource final : public ByteSource {
 public:
  explicit FileSource(const std::string& path);
  // Opens `name` in an open folder. Error(data) for a symbolic link.
  FileSource(const FileHandle& folder, const std::string& folder_path, const std::string& name);

  const std::string& name() const override { return path_; }
  std::uint64_t size() const override { return size_; }
  void read(std::uint64_t offset, std::span<std::byte> out) override;

 private:
  FileSource(std::string path, FileHandle file);

  std::string path_;
  FileHandle file_;
  std::uint64_t size_;
};

}  // namespace dp
