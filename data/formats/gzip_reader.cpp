#include "data/formats/gzip_reader.h"

#include <algorithm>
#include <limits>
#include <new>

namespace dp {

GzipReader::GzipReader(ByteReader& packed) : packed_(packed), name_(packed.name() + " (inflated)") {
  constexpr int kGzipOnly = 16;
  if (inflateInit2(&stream_, MAX_WBITS + kGzipOnly) != Z_OK) throw std::bad_alloc();
  packed_.rewind();
}

GzipReader::~GzipReader() { inflateEnd(&stream_); }

bool GzipReader::refill() {
  if (stream_.avail_in != 0) return true;
  const std::size_t got = packed_.read(input_);
  stream_.next_in = input_.data();
  stream_.avail_in = static_cast<uInt>(got);
  fed_ += got;
  return got != 0;
}

void GzipReader::start_member_or_end() {
  if (!refill()) {
    ended_ = true;
    return;
  }
  constexpr std::uint8_t kGzipMagic = 0x1f;
  if (*stream_.next_in != kGzipMagic)
    throw damaged(packed_.name(), position(), "the gzip data have ended, yet more bytes follow");
  inflateReset(&stream_);
}

std::size_t GzipReader::read(std::span<std::uint8_t> out) {
  std::size_t filled = 0;
  while (filled < out.size() && !ended_) {
    const bool more = refill();
    const std::size_t room = std::min<std::size_t>(out.size() - filled, std::numeric_limits<uInt>::max());
    stream_.next_out = out.data() + filled;
    stream_.avail_out = static_cast<uInt>(room);
    const int status = inflate(&stream_, Z_NO_FLUSH);
    filled += room - stream_.avail_out;
    if (status == Z_STREAM_END) {
      start_member_or_end();
    } else if (status == Z_MEM_ERROR) {
      throw std::bad_alloc();
    } else if (status != Z_OK && status != Z_BUF_ERROR) {
      throw damaged(
          packed_.name(), position(),
          std::string("the gzip data are corrupt (") + (stream_.msg ? stream_.msg : "needs a dictionary") + ")");
    } else if (!more && stream_.avail_out != 0) {
      throw damaged(packed_.name(), position(), "the gzip data end too early");
    }
  }
  return filled;
}

void GzipReader::rewind() {
  packed_.rewind();
  inflateReset(&stream_);
  stream_.avail_in = 0;
  fed_ = 0;
  ended_ = false;
}

}  // namespace dp
