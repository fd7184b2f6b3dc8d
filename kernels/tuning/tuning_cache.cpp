#include "kernels/tuning/tuning_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>

namespace dp::kernels::cuda {

namespace fs = std::filesystem;

std::string cache_folder() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') return (fs::path(cache) / "dp").string();
  const char* const home = std::getenv("HOME");
  return home == nullptr ? std::string() : (fs::path(home) / ".cache/dp").string();
}

namespace {

// Returns -1 if the file cannot be opened.
int open_to_append(const std::string& file) {
  std::error_code ignored;
  fs::create_directories(fs::path(file).parent_path(), ignored);
  return ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
}

}  // namespace

void append_line(const std::string& file, const std::string& line) {
  const int out = open_to_append(file);
  if (out < 0) return;
  const std::string text = line + "\n";
  [[maybe_unused]] const ssize_t written = ::write(out, text.data(), text.size());
  ::close(out);
}

FileLock::FileLock(const std::string& file) : file_(file.empty() ? -1 : open_to_append(file)) {
  while (file_ >= 0 && ::flock(file_, LOCK_EX) != 0 && errno == EINTR) {
  }
}

FileLock::~FileLock() {
  if (file_ >= 0) ::close(file_);
}

namespace {

constexpr std::uintmax_t kLongestFile = 4 << 20;  // about ten thousand problems

std::uint64_t fnv1a(std::string_view text, std::uint64_t hash = 0xCBF29CE484222325u) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

std::string hex(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

// Replaces control characters, so that the text fits into a field.
std::string field(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20; }, ' ');
  return text;
}

// Removes and returns the first field; also removes its tab.
std::string_view take_field(std::string_view& line) {
  const std::size_t end = std::min(line.find('\t'), line.size());
  const std::string_view first = line.substr(0, end);
  line.remove_prefix(std::min(end + 1, line.size()));
  return first;
}

}  // namespace

TuningCache::TuningCache(const std::string& folder, std::string machine) : machine_(std::move(machine)) {
  if (folder.empty()) return;
  file_ = folder + "/tuning-" + hex(fnv1a(machine_));
  read();
}

std::string TuningCache::check_of(const std::string& rest) const { return hex(fnv1a(rest, fnv1a(machine_))); }

void TuningCache::read() {
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(file_, error);
  if (error) return;
  if (bytes > kLongestFile) {  // not written by us; without removal the file would stay unusable
    std::filesystem::remove(file_, error);
    return;
  }
  std::ifstream in(file_);
  for (std::string line; std::getline(in, line);) {
    std::string_view rest = line;
    const std::string_view check = take_field(rest);
    if (check != check_of(std::string(rest))) continue;
    const std::string_view time = take_field(rest), candidate = take_field(rest);
    TunedChoice choice{std::string(candidate)};
    const auto [end, failed] = std::from_chars(time.data(), time.data() + time.size(), choice.microseconds);
    if (failed == std::errc() && end == time.data() + time.size()) choices_[std::string(rest)] = choice;
  }
}

std::optional<TunedChoice> TuningCache::find(const std::string& problem) const {
  const auto found = choices_.find(field(problem));
  return found == choices_.end() ? std::nullopt : std::optional(found->second);
}

void TuningCache::keep(const std::string& problem, const TunedChoice& choice, bool on_disk) {
  choices_[field(problem)] = choice;
  if (file_.empty() || !on_disk) return;
  char time[32];
  std::snprintf(time, sizeof time, "%.3f", choice.microseconds);
  const std::string rest = std::string(time) + "\t" + field(choice.candidate) + "\t" + field(problem);
  append_line(file_, check_of(rest) + "\t" + rest);
}

}  // namespace dp::kernels::cuda
