#include "files.h"

#include <dp/error.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/file.h>
#include <unistd.h>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

namespace dp_train {

void throw_errno(const std::string& path, const std::string& doing) {
  const std::string advice = errno == ENOSPC || errno == EDQUOT ? "; free some space and run the command again" : "";
  throw dp::Error(dp::ErrorCode::io, path + ": " + doing + " failed: " + std::strerror(errno) + advice);
}

File::File(const std::string& path, int flags) : path_(path), file_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {
  if (file_ < 0) throw_errno(path, "open");
}

File::~File() { ::close(file_); }

std::uint64_t File::end() {
  const off_t at = ::lseek(file_, 0, SEEK_END);
  if (at < 0) throw_errno(path_, "seek");
  return static_cast<std::uint64_t>(at);
}

void File::write(const char* data, std::size_t size) {
  while (size > 0) {
    const ssize_t written = ::write(file_, data, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_errno(path_, "write");
    data += written, size -= static_cast<std::size_t>(written);
  }
}

void File::clear() {
  if (::ftruncate(file_, 0) != 0 || ::lseek(file_, 0, SEEK_SET) != 0) throw_errno(path_, "truncate");
}

void File::sync() {
  if (::fsync(file_) != 0) throw_errno(path_, "fsync");
}

bool File::lock() { return ::flock(file_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK; }

std::string checksum(const std::string& path, std::size_t digits) {
  constexpr std::size_t kBlock = 1 << 20;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"), &std::fclose);
  if (!file) throw_errno(path, "open");
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  bool good = context && EVP_DigestInit_ex(context.get(), digits == 64 ? EVP_sha256() : EVP_md5(), nullptr) == 1;
  std::vector<char> block(kBlock);
  for (std::size_t got; good && (got = std::fread(block.data(), 1, kBlock, file.get())) > 0;)
    good = EVP_DigestUpdate(context.get(), block.data(), got) == 1;
  if (std::ferror(file.get())) throw_errno(path, "read");
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned length = 0;
  if (!good || EVP_DigestFinal_ex(context.get(), digest, &length) != 1)
    throw dp::Error(dp::ErrorCode::io, path + ": OpenSSL could not compute the checksum");
  std::string text;
  for (unsigned i = 0; i < length; ++i)
    for (const int shift : {4, 0}) text += "0123456789abcdef"[(digest[i] >> shift) & 15];
  return text;
}

}  // namespace dp_train
