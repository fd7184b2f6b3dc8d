#include "engine/checkpoint/put_in_place.h"

#include <sys/stat.h>

#include <cerrno>

#include "engine/base/fault.h"
#include "engine/base/file_ops.h"

namespace dp {
namespace {

void move(const std::string& from, const std::string& to) {
  if (file_ops().rename(from.c_str(), to.c_str()) != 0) throw_io_errno(to, "moving the new folder there", errno);
}

void move_back(const std::string& from, const std::string& to) { file_ops().rename(from.c_str(), to.c_str()); }

// Fallback for file systems without RENAME_EXCHANGE. Between the two renames the target is missing; find_checkpoint
// repairs that after a crash.
std::string replace_in_two(const std::string& temporary, const PathParts& target) {
  const std::string old = temporary_sibling(target, "old");
  move(target.path(), old);
  try {
    move(temporary, target.path());
    try {
      sync_folder(target.parent);
    } catch (...) {
      move_back(target.path(), temporary);
      throw;
    }
  } catch (...) {
    move_back(old, target.path());
    throw;
  }
  return old;
}

}  // namespace

std::string put_in_place(const std::string& temporary, const PathParts& target) {
  const std::string path = target.path();
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) {
    if (errno != ENOENT) throw_io_errno(path, "looking for it", errno);
    move(temporary, path);
    try {
      sync_folder(target.parent);
    } catch (...) {
      move_back(path, temporary);
      throw;
    }
    return {};
  }
  if (file_ops().exchange(temporary.c_str(), path.c_str()) != 0) {
    if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)
      throw_io_errno(path, "replacing it with the new folder", errno);
    return replace_in_two(temporary, target);
  }
  try {
    sync_folder(target.parent);
  } catch (...) {
    file_ops().exchange(temporary.c_str(), path.c_str());
    throw;
  }
  return temporary;
}

}  // namespace dp
