#include "unpack.h"

#include <archive.h>
#include <archive_entry.h>
#include <dp/error.h>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <vector>

#include "files.h"

namespace dp_train {
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
