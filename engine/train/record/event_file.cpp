#include "engine/train/record/event_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "dp/error.h"
#include "engine/base/crc32c.h"
#include "engine/base/files.h"

namespace dp {
namespace {

[[noreturn]] void fail(const char* what, const std::string& path, const char* remedy) {
  throw Error(ErrorCode::io, std::string(what) + " '" + path + "': " + std::strerror(errno) + remedy);
}

}  // namespace

AppendFile::AppendFile(const std::string& path, Open how) : path_(path) {
  const int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | (how == Open::new_only ? O_EXCL : 0);
  fd_ = ::open(path.c_str(), flags, 0644);
  if (fd_ < 0) fail("cannot write", path, "; check its permissions");
}

AppendFile::~AppendFile() {
  if (fd_ >= 0) ::close(fd_);
}

AppendFile& AppendFile::operator=(AppendFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}

void AppendFile::keep(std::size_t bytes) {
  if (::ftruncate(fd_, static_cast<off_t>(bytes)) != 0) fail("cannot trim", path_, "; check its permissions");
  ::lseek(fd_, static_cast<off_t>(bytes), SEEK_SET);
}

void AppendFile::append(const std::string& text) {
  if (fd_ < 0) return;
  const off_t begin = ::lseek(fd_, 0, SEEK_CUR);
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t wrote = ::write(fd_, text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      const int saved = errno;
      if (::ftruncate(fd_, begin) == 0) ::lseek(fd_, begin, SEEK_SET);  // removes an incomplete record
      errno = saved;
      const char* const remedy = remedy_of(saved);
      fail("cannot append to", path_, *remedy != '\0' ? remedy : "; check the disk and the folder");
    }
    done += static_cast<std::size_t>(wrote);
  }
}

namespace {

// Fields of protocol buffers.
enum Wire { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

std::string little_endian(std::uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
  return out;
}

std::string varint(std::uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7f) | 0x80);
  return out + static_cast<char>(value);
}

std::string key(int field, Wire wire) { return varint(static_cast<std::uint64_t>(field) << 3 | wire); }
std::string number(int field, double value) {
  return key(field, kFixed64) + little_endian(std::bit_cast<std::uint64_t>(value), 8);
}
std::string number(int field, float value) {
  return key(field, kFixed32) + little_endian(std::bit_cast<std::uint32_t>(value), 4);
}
std::string whole(int field, std::int64_t value) {
  return key(field, kVarint) + varint(static_cast<std::uint64_t>(value));
}
std::string bytes(int field, const std::string& value) { return key(field, kBytes) + varint(value.size()) + value; }

// tensorflow.Event
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
// tensorflow.Summary, Summary.Value, SummaryMetadata, PluginData
constexpr int kValue = 1, kTag = 1, kSimpleValue = 2, kMetadata = 9, kPluginData = 1, kPluginName = 1, kContent = 2;
// tensorboard.hparams.HParamsPluginData, SessionStartInfo; google.protobuf.Value
constexpr int kVersion = 1, kSessionStart = 3, kHparams = 1, kStartTime = 5, kMapKey = 1, kMapValue = 2;
constexpr int kNumberValue = 2, kStringValue = 3, kBoolValue = 4;

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

constexpr std::string_view kPrefix = "events.out.tfevents.";

// The latest time in the names of the folder's event files, which may be ahead of this host's clock; 0: none.
std::int64_t newest_stamp(const std::string& folder) {
  constexpr std::int64_t kMost = 9'999'999'998;  // names with more digits would not sort by time
  std::int64_t newest = 0;
  for (const std::string& name : names_in(folder)) {
    std::int64_t stamp = 0;
    if (name.starts_with(kPrefix) &&
        std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), stamp).ec == std::errc{} &&
        stamp <= kMost)
      newest = std::max(newest, stamp);
  }
  return newest;
}

std::uint32_t masked_crc(const std::string& data) {
  const std::uint32_t crc = crc32c(std::as_bytes(std::span(data)));
  return std::rotr(crc, 15) + 0xa282ead8U;
}

std::string protobuf_value(const nlohmann::ordered_json& value) {
  if (value.is_boolean()) return whole(kBoolValue, value.get<bool>());
  if (value.is_number()) return number(kNumberValue, value.get<double>());
  return bytes(kStringValue, value.is_string() ? value.get<std::string>() : value.dump());
}

}  // namespace

std::string event_frame(const std::string& message) {
  const std::string length = little_endian(message.size(), 8);
  return length + little_endian(masked_crc(length), 4) + message + little_endian(masked_crc(message), 4);
}

std::string scalar_event(double wall_time, std::int64_t step, const Scalars& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars)
    summary += bytes(kValue, bytes(kTag, tag) + number(kSimpleValue, static_cast<float>(value)));
  return number(kWallTime, wall_time) + whole(kStep, step) + bytes(kSummary, summary);
}

Scalars scalars_of(const nlohmann::ordered_json& record) {
  static const std::map<std::string, std::string> kOtherNames{
      {"top1", "acc1"}, {"top5", "acc5"}, {"step", ""}, {"epoch", ""}, {"skipped", ""}, {"seconds_train", ""}};
  const std::string kind = record.value("kind", "");
  const std::string part = kind == "train"                  ? "Train/"
                           : kind != "eval"                 ? ""
                           : record.value("average", false) ? "Test EMA/"
                                                            : "Test/";
  Scalars scalars;
  for (const auto& [name, value] : record.items()) {
    const auto other = kOtherNames.find(name);
    const std::string& tag = other == kOtherNames.end() ? name : other->second;
    if (!part.empty() && !tag.empty() && value.is_number()) scalars.emplace_back(part + tag, value.get<double>());
  }
  return scalars;
}

std::string EventFile::new_name(const std::string& folder) {
  static std::atomic<int> number{0};
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host = {'h', 'o', 's', 't'};
  const std::int64_t seconds = std::max(static_cast<std::int64_t>(wall_time()), newest_stamp(folder) + 1);
  return fmt::format("{}{:010d}.{}.{}.{}", kPrefix, seconds, host.data(), ::getpid(), number++);
}

EventFile::EventFile(const std::string& path, std::optional<std::int64_t> resumed)
    : file_(path, AppendFile::Open::new_only) {
  file_.append(event_frame(number(kWallTime, wall_time()) + bytes(kFileVersion, "brain.Event:2")));
  constexpr int kStatus = 1, kStarted = 1;
  if (resumed)  // TensorBoard drops earlier events of this step or later
    file_.append(event_frame(number(kWallTime, wall_time()) + whole(kStep, *resumed + 1) +
                             bytes(kSessionLog, whole(kStatus, kStarted))));
}

void EventFile::add(std::int64_t step, const Scalars& scalars) {
  if (!scalars.empty()) file_.append(event_frame(scalar_event(wall_time(), step, scalars)));
}

void EventFile::add_options(const nlohmann::ordered_json& config) {
  std::string start = number(kStartTime, wall_time());
  for (const auto& [name, value] : config.items())
    if (!value.is_object())
      start = bytes(kHparams, bytes(kMapKey, name) + bytes(kMapValue, protobuf_value(value))) + start;
  const std::string content = whole(kVersion, 0) + bytes(kSessionStart, start);
  const std::string metadata = bytes(kPluginData, bytes(kPluginName, "hparams") + bytes(kContent, content));
  const std::string value = bytes(kTag, "_hparams_/session_start_info") + bytes(kMetadata, metadata);
  file_.append(event_frame(number(kWallTime, wall_time()) + bytes(kSummary, bytes(kValue, value))));
}

}  // namespace dp
