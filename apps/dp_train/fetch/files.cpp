#include "files.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <dp/error.h>
#include <openssl/evp.h>
#include <cerrno>
#include <cstring>
#include <filesystem>
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

namespace {

namespace fs = std::filesystem;
constexpr std::size_t kBlock = 1 << 16;
using Reader = std::unique_ptr<archive, int (*)(archive*)>;

bool is_harmless(archive_entry* entry) {
  const char* const name = archive_entry_pathname(entry);
  const auto type = archive_entry_filetype(entry);
  if (name == nullptr || *name == '\0' || archive_entry_hardlink(entry) != nullptr) return false;
  const fs::path path(name);
  for (const fs::path& part : path)
    if (part == "..") return false;
  return path.is_relative() && (type == AE_IFREG || type == AE_IFDIR);
}

void write_file(archive* reader, const std::string& archive_path, const fs::path& path, const std::atomic<int>& stop) {
  fs::create_directories(path.parent_path());
  File file(path.string(), O_WRONLY | O_CREAT | O_EXCL);
  std::vector<char> block(kBlock);
  la_ssize_t got = 0;
  while (stop.load() == 0 && (got = archive_read_data(reader, block.data(), kBlock)) > 0)
    file.write(block.data(), static_cast<std::size_t>(got));
  if (got < 0) throw dp::Error(dp::ErrorCode::data, archive_path + ": " + archive_error_string(reader));
  file.sync();
}

}  // namespace

void unpack(const std::string& archive_path, const std::string& folder, const std::atomic<int>& stop) {
  const auto refuse = [&](const std::string& fault) {
    throw dp::Error(dp::ErrorCode::data, archive_path + ": " + fault);
  };
  const Reader reader(archive_read_new(), &archive_read_free);
  archive_read_support_filter_gzip(reader.get());
  archive_read_support_format_tar(reader.get());
  if (archive_read_open_filename(reader.get(), archive_path.c_str(), kBlock) != ARCHIVE_OK)
    refuse(archive_error_string(reader.get()));
  fs::create_directory(folder);
  archive_entry* entry = nullptr;
  for (int result; stop.load() == 0 && (result = archive_read_next_header(reader.get(), &entry)) != ARCHIVE_EOF;) {
    if (result != ARCHIVE_OK) refuse(archive_error_string(reader.get()));
    if (!is_harmless(entry))
      refuse("its entry '" + std::string(archive_entry_pathname(entry) ? archive_entry_pathname(entry) : "") +
             "' is refused: only files and folders below the archive's own folder are unpacked");
    const fs::path path = fs::path(folder) / archive_entry_pathname(entry);
    if (archive_entry_filetype(entry) == AE_IFDIR)
      fs::create_directories(path);
    else
      write_file(reader.get(), archive_path, path, stop);
  }
}

}  // namespace dp_train
