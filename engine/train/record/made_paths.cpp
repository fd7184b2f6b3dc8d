#include "engine/train/record/made_paths.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "engine/base/durable.h"
#include "engine/base/file_handle.h"
#include "engine/base/file_ops.h"

namespace dp {

namespace fs = std::filesystem;

namespace {

// Makes a new folder survive a power loss. Returns errno on failure, else 0. A parent that cannot be read cannot be
// synced, and some network file systems do not sync folders: both count as success.
int sync_parent(const std::string& folder) {
  const FileHandle parent(file_ops().open(AT_FDCWD, split_path(folder).parent.c_str(), O_RDONLY | O_DIRECTORY, 0));
  if (!parent) return errno == EACCES ? 0 : errno;
  if (file_ops().fsync(parent.get()) == 0 || errno == EINVAL || errno == ENOTSUP) return 0;
  return errno;
}

}  // namespace

MadePaths::~MadePaths() {
  for (; !paths_.empty(); paths_.pop_back()) std::remove(paths_.back().c_str());  // removes folders only if empty
}

int MadePaths::make_folders(const std::string& path) {
  fs::path folder;
  for (const fs::path& part : fs::path(path)) {
    folder /= part;
    if (file_ops().mkdir(folder.c_str(), 0777) == 0) {
      paths_.push_back(folder.string());
      if (const int error = sync_parent(folder.string())) return error;
      continue;
    }
    const int error = errno;
    std::error_code ignored;
    if (!fs::is_directory(folder, ignored)) return error == EEXIST ? ENOTDIR : error;
  }
  return 0;
}

void MadePaths::note_unless_there(const std::string& file) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(file, error))) paths_.push_back(file);
}

}  // namespace dp
