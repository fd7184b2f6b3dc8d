#include "engine/train/run_folder.h"

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
#include "engine/train/text.h"

namespace dp {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& what, const std::string& path, const std::string& remedy) {
  throw Error(ErrorCode::io, what + " '" + path + "': " + std::strerror(errno) + "; " + remedy);
}

int open_lock(const std::string& folder, int flags) {
  return ::open((folder + "/.lock").c_str(), flags | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0644);
}

// Bytes of the leading lines that are whole, parse, and speak of steps up to `step`. A killed run leaves more.
std::size_t kept_bytes(const std::string& path, std::int64_t step) {
  std::ifstream in(path, std::ios::binary);
  std::size_t kept = 0;
  for (std::string line; std::getline(in, line) && !in.eof(); kept += line.size() + 1) {
    const auto record = nlohmann::json::parse(line, nullptr, false);
    if (!record.is_object()) break;
    const auto at = record.find("step");
    if (at == record.end() || !at->is_number_integer() || at->get<std::int64_t>() > step) break;
  }
  return kept;
}

}  // namespace

RunFolder::RunFolder(const std::string& path) : path_(path) {
  if (path_.empty()) return;
  while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
  const std::string remedy = "choose another --output-dir";
  std::error_code error;
  fs::create_directories(path_ + "/checkpoints", error);
  if (error) {
    errno = error.value();
    fail("can not make the run folder", path_, remedy);
  }
  lock_ = open_lock(path_, O_CREAT);
  if (lock_ < 0) fail("can not write in the run folder", path_, remedy);
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    const bool busy = errno == EWOULDBLOCK;
    const int saved = errno;
    ::close(lock_);
    errno = saved;
    if (busy) throw Error(ErrorCode::usage, "another run is writing in '" + path_ + "'; wait for it, or " + remedy);
    fail("can not lock the run folder", path_, remedy);
  }
  if (::access((path_ + "/checkpoints").c_str(), W_OK | X_OK) != 0) {
    const int saved = errno;
    ::close(lock_);
    errno = saved;
    fail("can not write in", path_ + "/checkpoints", remedy);
  }
}

RunFolder::~RunFolder() {
  if (metrics_ >= 0) ::close(metrics_);
  if (lock_ >= 0) ::close(lock_);
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
  write_file_atomically(path_ + "/config.toml", config_toml);
  ::unlink((path_ + "/summary.json").c_str());
  const std::string metrics = path_ + "/metrics.jsonl";
  metrics_ = ::open(metrics.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
  if (metrics_ < 0) fail("can not write", metrics, "check its permissions");
  const auto keep = static_cast<off_t>(continued_from ? kept_bytes(metrics, *continued_from) : 0);
  if (::ftruncate(metrics_, keep) != 0) fail("can not trim", metrics, "check its permissions");
  ::lseek(metrics_, keep, SEEK_SET);
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
      if (::ftruncate(metrics_, begin) == 0) ::lseek(metrics_, begin, SEEK_SET);  // no half line stays
      errno = saved;
      fail("can not append to", path_ + "/metrics.jsonl", "free some space");
    }
    done += static_cast<std::size_t>(wrote);
  }
}

FolderLock::FolderLock(const std::string& folder) {
  fd_ = open_lock(folder, O_CREAT);
  if (fd_ >= 0 && ::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    ::close(fd_);
    fd_ = -1;
  }
}

FolderLock::~FolderLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace dp
