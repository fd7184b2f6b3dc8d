#include "engine/train/record/made_paths.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "engine/base/durable.h"
#include "engine/base/file_ops.h"

namespace dp {

namespace fs = std::filesystem;

MadePaths::~MadePaths() {
  for (; !paths_.empty(); paths_.pop_back()) std::remove(paths_.back().c_str());  // removes folders only if empty
}

int MadePaths::make_folders(const std::string& path) {
  fs::path folder;
  for (const fs::path& part : fs::path(path)) {
    folder /= part;
    if (file_ops().mkdir(folder.c_str(), 0777) == 0) {
      paths_.push_back(folder.string());
      const int error = try_sync_folder(split_path(folder.string()).parent);
      if (error != 0 && error != EACCES) return error;  // a parent that cannot be read cannot be synced
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
