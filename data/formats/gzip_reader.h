// Streaming gzip (RFC 1952) decompression with a fixed amount of memory.
#pragma once

#include <zlib.h>

#include <array>

#include "data/formats/byte_reader.h"

namespace dp {

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
