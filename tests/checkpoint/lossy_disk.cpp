#include "checkpoint/lossy_disk.h"

#include <fcntl.h>

#include <cerrno>
#include <filesystem>

#include "checkpoint/files_support.h"

namespace dp::test {
namespace {

namespace fs = std::filesystem;

std::string name_of(const std::string& path) { return fs::path(path).filename().string(); }

Entries all_entries(const Inode& inode) {
  Entries entries = inode.entries;
  for (const auto& change : inode.unsafe) change(entries);
  return entries;
}

std::shared_ptr<Inode> load(const std::string& path) {
  auto inode = std::make_shared<Inode>();
  inode->folder = fs::is_directory(path);
  if (inode->folder) {
    for (const auto& entry : fs::directory_iterator(path)) inode->entries[entry.path().filename()] = load(entry.path());
  } else {
    inode->data = read_bytes(path);
    inode->safe_bytes = inode->data.size();
  }
  return inode;
}

void store(const std::string& target, const Entries& entries, bool changes, bool bytes) {
  for (const auto& [name, inode] : entries) {
    const std::string path = target + "/" + name;
    if (inode->folder) {
      fs::create_directory(path);
      store(path, changes ? all_entries(*inode) : inode->entries, changes, bytes);
    } else {
      write_bytes(path, bytes ? inode->data : inode->data.substr(0, inode->safe_bytes));
    }
  }
}

}  // namespace

LossyDisk::LossyDisk(std::string root, int end, bool exchanges)
    : root_(std::move(root)), end_(end), exchanges_(exchanges), root_inode_(load(root_)) {}

void LossyDisk::restore(const std::string& target, std::size_t root_changes, bool other_changes, bool bytes) const {
  Entries entries = root_inode_->entries;
  for (std::size_t i = 0; i < root_changes; ++i) root_inode_->unsafe[i](entries);
  store(target, entries, other_changes, bytes);
}

std::shared_ptr<Inode> LossyDisk::find(const std::string& path) const {
  std::shared_ptr<Inode> inode = root_inode_;
  for (const fs::path& part : fs::path(path).lexically_relative(root_))
    if (part != ".") inode = all_entries(*inode).at(part);
  return inode;
}

void LossyDisk::change(const std::string& path, std::function<void(Entries&)> change) {
  find(fs::path(path).parent_path())->unsafe.push_back(std::move(change));
}

int LossyDisk::open(int folder, const char* path, int flags, mode_t mode) {
  const int file = FileOps::open(folder, path, flags, mode);
  if (file < 0 || !follow()) return file;
  if (flags & O_CREAT) {
    auto inode = std::make_shared<Inode>();
    change(path, [name = name_of(path), inode](Entries& entries) { entries[name] = inode; });
    open_[file] = inode;
  } else if (folder == AT_FDCWD) {  // opened for fsync or for reading; neither changes it
    open_[file] = find(path);
  }
  return file;
}

ssize_t LossyDisk::write(int file, const void* data, std::size_t bytes) {
  if (follow()) open_.at(file)->data.append(static_cast<const char*>(data), bytes);
  return FileOps::write(file, data, bytes);
}

int LossyDisk::fsync(int file) {
  if (follow()) {
    Inode& inode = *open_.at(file);
    inode.safe_bytes = inode.data.size();
    inode.entries = all_entries(inode);
    inode.unsafe.clear();
  }
  return 0;
}

int LossyDisk::close(int file) {
  if (follow()) open_.erase(file);
  return FileOps::close(file);
}

int LossyDisk::mkdir(const char* path, mode_t mode) {
  if (follow()) {
    auto inode = std::make_shared<Inode>();
    inode->folder = true;
    change(path, [name = name_of(path), inode](Entries& entries) { entries[name] = inode; });
  }
  return FileOps::mkdir(path, mode);
}

int LossyDisk::rename(const char* from, const char* to) {
  if (follow())
    change(from, [a = name_of(from), b = name_of(to)](Entries& entries) {
      entries[b] = entries.at(a);
      entries.erase(a);
    });
  return FileOps::rename(from, to);
}

int LossyDisk::exchange(const char* a, const char* b) {
  if (!exchanges_) return errno = ENOSYS, -1;
  if (follow())
    change(a, [x = name_of(a), y = name_of(b)](Entries& entries) { std::swap(entries.at(x), entries.at(y)); });
  return FileOps::exchange(a, b);
}

int LossyDisk::unlink(const char* path) {
  if (follow()) change(path, [name = name_of(path)](Entries& entries) { entries.erase(name); });
  return FileOps::unlink(path);
}

int LossyDisk::rmdir(const char* path) {
  if (follow()) change(path, [name = name_of(path)](Entries& entries) { entries.erase(name); });
  return FileOps::rmdir(path);
}

}  // namespace dp::test
