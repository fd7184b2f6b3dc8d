#include "data/formats/byte_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <new>
#include <system_error>

namespace dp {
namespace {

std::string reason(int error) { return std::generic_category().message(error); }

}  // namespace

Error FileReader::unreadable(const std::string& what) const {
  return Error(ErrorCode::data, path_ + ": " + what + "; " + remedy_);
}

FileReader::FileReader(const std::string& path, std::string remedy) : path_(path), remedy_(std::move(remedy)) {
  // O_NONBLOCK: opening a named pipe must not block. It is rejected below.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) throw unreadable("cannot be opened (" + reason(errno) + ")");
  struct stat status {};
  const int error = ::fstat(descriptor_, &status) == 0 ? 0 : errno;
  if (error == 0 && S_ISREG(status.st_mode)) {
    size_ = static_cast<std::uint64_t>(status.st_size);
    return;
  }
  ::close(descriptor_);
  if (error != 0) throw unreadable("has an unknown size (" + reason(error) + ")");
  throw unreadable(S_ISDIR(status.st_mode) ? "is a folder, not a file" : "is not a regular file");
}

FileReader::~FileReader() { ::close(descriptor_); }

std::size_t FileReader::read(std::span<std::uint8_t> out) {
  std::size_t filled = 0;
  while (filled < out.size()) {
    const ssize_t got = ::read(descriptor_, out.data() + filled, out.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw unreadable("byte " + std::to_string(offset_) + " cannot be read (" + reason(errno) + ")");
    if (got == 0) break;
    filled += static_cast<std::size_t>(got);
    offset_ += static_cast<std::uint64_t>(got);
  }
  return filled;
}

void FileReader::rewind() {
  if (::lseek(descriptor_, 0, SEEK_SET) != 0) throw unreadable("cannot be read twice (" + reason(errno) + ")");
  offset_ = 0;
}

std::size_t MemoryReader::read(std::span<std::uint8_t> out) {
  const std::size_t count = std::min(out.size(), bytes_.size() - offset_);
  std::copy_n(bytes_.data() + offset_, count, out.data());
  offset_ += count;
  return count;
}

Error damaged(const std::string& name, std::uint64_t offset, const std::string& what, const std::string& remedy) {
  return Error(ErrorCode::data, name + ": byte " + std::to_string(offset) + ": " + what + "; " + remedy);
}

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
