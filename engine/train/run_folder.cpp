#include "engine/train/run_folder.h"
#include "engine/base/atomic_text.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "dp/error.h"
#include "engine/base/durable.h"
#include "engine/base/text.h"
#include "engine/checkpoint/checkpoint_folder.h"

namespace dp {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& what, const std::string& path, const std::string& remedy) {
  throw Error(ErrorCode::io, what + " '" + path + "': " + std::strerror(errno) + "; " + remedy);
}

// Bytes of the leading complete lines that parse and belong to steps up to `step`. A killed run may leave later or
// incomplete lines.
std::size_t bytes_up_to(const std::string& path, std::int64_t step) {
  std::ifstream in(path, std::ios::binary);
  std::size_t bytes = 0;
  for (std::string line; std::getline(in, line) && !in.eof(); bytes += line.size() + 1) {
    const auto record = nlohmann::json::parse(line, nullptr, false);
    if (!record.is_object()) break;
    const auto at = record.find("step");
    if (at == record.end() || !at->is_number_integer() || at->get<std::int64_t>() > step) break;
  }
  return bytes;
}

}  // namespace

RunFolder::RunFolder(const std::string& path) : path_(path) {
  if (path_.empty()) return;
  while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
  const std::string remedy = "choose another --output-dir";
  const auto refuse = [&](int error, const char* what, const std::string& where) {
    errno = error;
    fail(what, where, remedy);
  };
  if (const int error = made_.make_folders(path_)) refuse(error, "cannot create the run folder", path_);
  lock_.emplace(path_);
  if (!lock_->held()) {
    if (lock_->error() == EWOULDBLOCK)
      throw Error(ErrorCode::usage, "another run is writing in '" + path_ + "'; wait for it, or " + remedy);
    refuse(lock_->error(), "cannot lock the run folder", path_);
  }
  const std::string checkpoints = path_ + "/checkpoints";
  if (const int error = made_.make_folders(checkpoints)) refuse(error, "cannot create", checkpoints);
  if (::access(checkpoints.c_str(), W_OK | X_OK) != 0) refuse(errno, "cannot write in", checkpoints);
}

RunFolder::~RunFolder() {
  if (metrics_ >= 0) ::close(metrics_);
}

bool RunFolder::has_checkpoints() const {
  std::error_code error;
  return writes() && fs::directory_iterator(path_ + "/checkpoints", error) != fs::directory_iterator();
}

bool RunFolder::owns(const std::string& checkpoint_folder) const {
  std::error_code error;
  const fs::path parent = fs::canonical(checkpoint_folder, error).parent_path();
  return writes() && !error && fs::equivalent(parent, path_ + "/checkpoints", error);
}

void RunFolder::keep_newest(int count) const {
  if (!writes()) return;
  std::vector<std::pair<std::int64_t, fs::path>> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path_ + "/checkpoints", error)) {
    const std::string name = entry.path().filename().string();
    std::int64_t step = 0;
    const char* const end = name.data() + name.size();
    if (name.starts_with("step-") && std::from_chars(name.data() + 5, end, step).ptr == end)
      found.emplace_back(step, entry.path());
  }
  std::sort(found.rbegin(), found.rend());
  for (std::size_t i = static_cast<std::size_t>(count); i < found.size(); ++i) fs::remove_all(found[i].second, error);
}

void RunFolder::begin(const std::string& config_toml, std::optional<std::int64_t> continued_from) {
  if (!writes()) return;
  if (continued_from) set_aside_after(path_, *continued_from);
  for (const char* name : {"/config.toml", "/summary.json"}) remove_unfinished(path_ + name);
  const std::string metrics = path_ + "/metrics.jsonl", config = path_ + "/config.toml";
  made_.note_unless_there(metrics);
  metrics_ = ::open(metrics.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
  if (metrics_ < 0) fail("cannot write", metrics, "check its permissions");
  made_.note_unless_there(config);
  write_file_atomically(config, config_toml);
  ::unlink((path_ + "/summary.json").c_str());
  const auto keep = static_cast<off_t>(continued_from ? bytes_up_to(metrics, *continued_from) : 0);
  if (::ftruncate(metrics_, keep) != 0) fail("cannot trim", metrics, "check its permissions");
  ::lseek(metrics_, keep, SEEK_SET);
  made_.keep();
}

void RunFolder::append_metrics(const nlohmann::ordered_json& record) {
  if (metrics_ < 0) return;
  const std::string line = json_line(record) + "\n";
  const off_t begin = ::lseek(metrics_, 0, SEEK_CUR);
  std::size_t done = 0;
  while (done < line.size()) {
    const ssize_t wrote = ::write(metrics_, line.data() + done, line.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      const int saved = errno;
      if (::ftruncate(metrics_, begin) == 0) ::lseek(metrics_, begin, SEEK_SET);  // removes an incomplete line
      errno = saved;
      fail("cannot append to", path_ + "/metrics.jsonl", "free some space");
    }
    done += static_cast<std::size_t>(wrote);
  }
}

FolderLock::FolderLock(const std::string& folder) : path_(folder + "/.lock") {
  const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW;
  while (fd_ < 0) {
    fd_ = ::open(path_.c_str(), flags | O_CREAT | O_EXCL, 0644);
    made_ = fd_ >= 0;
    if (fd_ < 0 && errno == EEXIST) fd_ = ::open(path_.c_str(), flags);
    if (fd_ < 0 && errno == ENOENT && ::access(folder.c_str(), X_OK) == 0) continue;  // its owner just removed it
    if (fd_ < 0) {
      error_ = errno;
      return;
    }
    struct stat locked {
    }, there{};
    const bool taken = ::flock(fd_, LOCK_EX | LOCK_NB) == 0;
    if (!taken) error_ = errno;
    if (taken && ::fstat(fd_, &locked) == 0 && ::stat(path_.c_str(), &there) == 0 && locked.st_ino == there.st_ino &&
        locked.st_dev == there.st_dev)
      return;
    ::close(fd_);  // locked by another run, or removed by its owner
    fd_ = -1;
    if (!taken) return;
  }
}

FolderLock::~FolderLock() {
  if (fd_ < 0) return;
  if (made_) ::unlink(path_.c_str());
  ::close(fd_);
}

}  // namespace dp
