// Reads files byte by byte, plain or gzipped.
#pragma once

#include <zlib.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "dp/error.h"

namespace dp {

// Sequential byte sources: a file, memory, or an inflated gzip stream.

class ByteReader {
 public:
  virtual ~ByteReader() = default;
  // Fills `out`. Returns fewer bytes only at the end of the source. Error(data), with the offset, on read failures.
  virtual std::size_t read(std::span<std::uint8_t> out) = 0;
  virtual void rewind() = 0;
  virtual const std::string& name() const = 0;  // for messages: the path
  // Total number of bytes, if known in advance. A file may still change.
  virtual std::optional<std::uint64_t> size() const { return std::nullopt; }
};

// An open regular file. Error(data) for anything else.
class FileReader final : public ByteReader {
 public:
  // `remedy`: the end of messages about a file that cannot be read.
  explicit FileReader(const std::string& path,
                      std::string remedy = "give a readable file, or train without it: --dataset digits");
  ~FileReader() override;
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  std::size_t read(std::span<std::uint8_t> out) override;
  void rewind() override;
  const std::string& name() const override { return path_; }
  std::optional<std::uint64_t> size() const override { return size_; }  // at the time of opening

 private:
  Error unreadable(const std::string& what) const;

  std::string path_, remedy_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
  std::uint64_t offset_ = 0;
};

// Borrows the bytes.
class MemoryReader final : public ByteReader {
 public:
  MemoryReader(std::string name, std::span<const std::uint8_t> bytes) : name_(std::move(name)), bytes_(bytes) {}

  std::size_t read(std::span<std::uint8_t> out) override;
  void rewind() override { offset_ = 0; }
  const std::string& name() const override { return name_; }
  std::optional<std::uint64_t> size() const override { return bytes_.size(); }

 private:
  std::string name_;
  std::span<const std::uint8_t> bytes_;
  std::size_t offset_ = 0;
};

inline constexpr const char* kDownloadAgain = "download the file again";
// "<name>: byte <offset>: <what>; <remedy>".
Error damaged(const std::string& name, std::uint64_t offset, const std::string& what,
              const std::string& remedy = "download the file again, or train without it: --dataset digits");

// Streaming gzip (RFC 1952) decompression with a fixed amount of memory.
// Borrows `packed`. Error(data), with the offset in the packed bytes, for corrupt or truncated data and for trailing
// bytes that are not a gzip member.
class GzipReader final : public ByteReader {
 public:
  explicit GzipReader(ByteReader& packed);
  ~GzipReader() override;
  GzipReader(const GzipReader&) = delete;
  GzipReader& operator=(const GzipReader&) = delete;

  std::size_t read(std::span<std::uint8_t> out) override;
  void rewind() override;
  const std::string& name() const override { return name_; }

 private:
  bool refill();  // false at the end of the packed bytes
  std::uint64_t position() const { return fed_ - stream_.avail_in; }
  void start_member_or_end();

  ByteReader& packed_;
  std::string name_;
  z_stream stream_{};
  std::array<std::uint8_t, 1 << 16> input_;
  std::uint64_t fed_ = 0;  // packed bytes passed to the stream so far
  bool ended_ = false;
};

}  // namespace dp
