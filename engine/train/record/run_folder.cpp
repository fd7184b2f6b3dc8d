#include "engine/train/record/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "dp/error.h"
#include "engine/base/files.h"
#include "engine/base/text.h"
#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/step/memory/memory_room.h"
#include "engine/train/record/records.h"

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
    std::error_code unseen;
    if (!fs::is_directory(folder, unseen)) return error != EEXIST ? error : unseen ? unseen.value() : ENOTDIR;
  }
  return 0;
}

void MadePaths::note_unless_there(const std::string& file) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(file, error))) paths_.push_back(file);
}

namespace {

[[noreturn]] void fail(const std::string& what, const std::string& path, const std::string& remedy) {
  throw Error(ErrorCode::io, what + " '" + path + "': " + std::strerror(errno) + "; " + remedy);
}

// True also for a dangling link.
bool is_file_or_link(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  return fs::is_regular_file(status) || fs::is_symlink(status);
}

bool has_events(const std::string& folder) {
  return std::ranges::any_of(names_in(folder),
                             [](const std::string& name) { return name.starts_with("events.out.tfevents."); });
}

std::string without_comments(const std::string& toml) {
  std::istringstream in(toml);
  std::string rest;
  for (std::string line; std::getline(in, line);)
    if (!line.starts_with('#')) rest += line + "\n";
  return rest;
}

// Bytes of the leading complete lines that parse and belong to steps up to `step`. A killed run may leave later or
// incomplete lines.
std::size_t bytes_up_to(const std::string& path, std::int64_t step) {
  std::istringstream in(read_file(path));
  std::size_t bytes = 0;
  for (std::string line; std::getline(in, line) && !in.eof(); bytes += line.size() + 1) {
    const auto record = parse_record<nlohmann::json>(line);
    if (!record.is_object()) break;
    const auto at = record.find("step");
    if (at == record.end() || !at->is_number_integer() || at->get<std::int64_t>() > step) break;
  }
  return bytes;
}

}  // namespace

RunFolder::RunFolder(const std::string& path, std::vector<std::string> own_metrics)
    : path_(path), own_metrics_(std::move(own_metrics)) {
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

bool RunFolder::has_checkpoints() const { return writes() && !names_in(path_ + "/checkpoints").empty(); }

bool RunFolder::owns(const std::string& checkpoint_folder) const {
  if (!writes()) return false;
  std::error_code error;
  const fs::path parent = fs::canonical(checkpoint_folder, error).parent_path();
  const bool same = !error && fs::equivalent(parent, path_ + "/checkpoints", error);
  if (error == std::errc::no_such_file_or_directory) return false;
  if (error) throw_data_errno(checkpoint_folder, "comparing its folder with the run's", error.value());
  return same;
}

std::string RunFolder::space_warning(std::size_t bytes) const {
  const std::int64_t free = file_ops().free_bytes(path_.c_str());
  if (free < 0 || static_cast<std::size_t>(free) / 2 >= bytes) return {};
  return fmt::format(
      "the disk of '{}' has room for {} further checkpoint: {} are free, and one takes {}; free some space", path_,
      static_cast<std::size_t>(free) < bytes ? "no" : "only one", engine::in_units(static_cast<std::size_t>(free)),
      engine::in_units(bytes));
}

void RunFolder::keep_newest(int count) const {
  if (!writes()) return;
  std::vector<std::pair<std::int64_t, fs::path>> found;
  const std::string folder = path_ + "/checkpoints";
  for (const std::string& name : names_in(folder)) {
    std::int64_t step = 0;
    if (!name.starts_with("step-") || !is_checkpoint_name(name)) continue;
    if (std::from_chars(name.data() + 5, name.data() + name.size(), step).ec == std::errc{})
      found.emplace_back(step, folder + "/" + name);
  }
  std::error_code error;
  std::sort(found.rbegin(), found.rend());
  for (std::size_t i = static_cast<std::size_t>(count); i < found.size(); ++i) fs::remove_all(found[i].second, error);
}

void RunFolder::begin(const std::string& config_toml, std::optional<std::int64_t> continued_from, bool adds) {
  if (!writes()) return;
  if (continued_from) set_aside_after(path_, *continued_from);
  const std::string metrics = path_ + "/metrics.jsonl", config = config_file(config_toml);
  for (const char* const name : {"/summary.json", "/env.json", "/report.html", "/predictions.json", "/metrics.prom"})
    remove_unfinished(path_ + name);
  remove_unfinished(config);
  const std::string table = path_ + "/metrics.csv", events = path_ + "/" + EventFile::new_name(path_);
  for (const std::string& file : {metrics, table}) made_.note_unless_there(file);
  metrics_ = AppendFile(metrics, AppendFile::Open::existing_or_new);
  table_ = AppendFile(table, AppendFile::Open::existing_or_new);
  // A run that left events but no checkpoint is replaced: TensorBoard drops its events from step 0 on.
  constexpr std::int64_t kBeforeAll = -1;
  if (adds) made_.note_unless_there(events);
  if (adds)
    events_ = EventFile(events, continued_from || !has_events(path_) ? continued_from : std::optional(kBeforeAll));
  made_.note_unless_there(config);
  if (!is_file_or_link(config)) write_file_atomically(config, config_toml);
  for (const char* of_before : {"/summary.json", "/predictions.json", "/metrics.prom"})
    ::unlink((path_ + of_before).c_str());
  for (const char* updated : {"/env.json", "/report.html"}) {  // updates would follow a link
    std::error_code error;
    if (fs::is_symlink(path_ + updated, error)) ::unlink((path_ + updated).c_str());
  }
  metrics_.keep(continued_from ? bytes_up_to(metrics, *continued_from) : 0);
  table_.keep(0);
  table_.append(csv_table(read_file(metrics), own_metrics_));
  prometheus_ = PrometheusFile(path_);
  made_.keep();
}

// The latest config file if it has this text, else the next.
std::string RunFolder::config_file(const std::string& text) const {
  std::string latest, file = path_ + "/config.toml";
  for (int number = 2; is_file_or_link(file); ++number) {
    latest = file;
    file = path_ + "/config." + std::to_string(number) + ".toml";
  }
  std::error_code error;
  return fs::is_regular_file(latest, error) && without_comments(read_file(latest)) == without_comments(text) ? latest
                                                                                                             : file;
}

std::set<bool> RunFolder::evaluated_at(std::int64_t step) const {
  std::set<bool> averages;
  std::istringstream in(read_file(path_ + "/metrics.jsonl"));
  for (std::string line; writes() && std::getline(in, line) && !in.eof();) {
    const auto record = parse_record<nlohmann::json>(line);
    if (record.is_object() && record.value("kind", nlohmann::json()) == "eval" &&
        record.value("step", nlohmann::json()) == step)
      averages.insert(record.value("average", nlohmann::json()) == true);
  }
  return averages;
}

double RunFolder::seconds_train() const {
  double seconds = 0;
  std::istringstream in(read_file(path_ + "/metrics.jsonl"));
  for (std::string line; std::getline(in, line);) {
    const auto record = parse_record<nlohmann::json>(line);
    if (!record.is_object() || !record.contains("seconds_train") || !record["seconds_train"].is_number()) continue;
    seconds = record["seconds_train"].get<double>();
  }
  return seconds;
}

void RunFolder::append_metrics(const nlohmann::ordered_json& record) {
  std::exception_ptr failure;
  const auto attempt = [&](const auto& write) {
    try {
      write();
    } catch (...) {
      failure = std::current_exception();
    }
  };
  attempt([&] { events_.add(record.value("step", std::int64_t{0}), scalars_of(record)); });
  attempt([&] { table_.append(csv_row(record, own_metrics_)); });
  attempt([&] { prometheus_.add(record); });
  attempt([&] { metrics_.append(json_line(record) + "\n"); });
  if (failure) std::rethrow_exception(failure);
}

void RunFolder::note_checkpoint() { prometheus_.saved(std::time(nullptr)); }

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

// A line of /proc/locks: "7: FLOCK  ADVISORY  WRITE 1234 fd:01:56789 0 EOF". The device is not compared: of overlays it
// is another one than stat() has.
std::optional<int> writer_of(const std::string& folder) {
  struct stat lock {};
  if (::stat((folder + "/.lock").c_str(), &lock) != 0) return std::nullopt;
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    std::istringstream in(line);
    std::string number, kind, advisory, access, file;
    int process = 0;
    if (!(in >> number >> kind >> advisory >> access >> process >> file) || kind != "FLOCK" || access != "WRITE")
      continue;
    if (file.substr(file.rfind(':') + 1) == std::to_string(lock.st_ino)) return process;
  }
  return std::nullopt;
}

}  // namespace dp
