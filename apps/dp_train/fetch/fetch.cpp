#include "fetch.h"

#include <curl/curl.h>
#include <dp/error.h>
#include <dp/shell.h>
#include <dp/trainer.h>
#include <fcntl.h>
#include <unistd.h>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "files.h"

namespace dp_train {
namespace {

// One file from one address.
struct Download {
  std::string url;      // http or https
  std::string file;     // receives the bytes; those that it already has are not requested again
  std::uint64_t bytes;  // of the whole file, which is gzip
  int patience;         // seconds to connect, and seconds of less than 1 kB/s, after which the server is given up
  const std::atomic<int>& stop;
  std::function<void(std::uint64_t done, double bytes_per_second)> progress;
};

struct Failure {
  dp::ErrorCode code;  // io, or data if the server sent something else than the file
  std::string reason;
};

constexpr const char* kAgent = "dp_train/" DP_VERSION;
constexpr long kLeastSpeed = 1000, kMostRedirects = 5, kNoSuchRange = 416, kPart = 206;
constexpr char kGzip = '\x1f';  // the first byte of every gzip file

// Parses the header "bytes FIRST-LAST/TOTAL"; nullopt if the text has another form. TOTAL may be "*" (unknown).
struct Range {
  std::uint64_t first, last;
  std::optional<std::uint64_t> total;
};
std::optional<Range> range_of(std::string_view text) {
  const auto take = [&text](std::string_view word) {
    const bool there = text.starts_with(word);
    if (there) text.remove_prefix(word.size());
    return there;
  };
  const auto number = [&text](std::uint64_t& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    return error == std::errc();
  };
  Range range{0, 0, 0};
  if (!take("bytes ") || !number(range.first) || !take("-") || !number(range.last) || !take("/")) return std::nullopt;
  if (take("*"))
    range.total.reset();
  else if (!number(*range.total))
    return std::nullopt;
  return text.empty() ? std::optional(range) : std::nullopt;
}

// Hides the address of the proxy, which libcurl prints with its password, if it has one.
std::string without_proxy(std::string text) {
  for (const char* name : {"http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"}) {
    const char* const proxy = std::getenv(name);
    const std::string_view value = proxy == nullptr ? "" : proxy;
    if (value.find('@') == std::string_view::npos) continue;
    for (std::size_t at = 0; (at = text.find(value, at)) != std::string::npos;)
      text.replace(at, value.size(), "the proxy in " + std::string(name));
  }
  return text;
}

using Handle = std::unique_ptr<CURL, void (*)(CURL*)>;

Handle easy_handle() {
  static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
  Handle handle(ready == CURLE_OK ? curl_easy_init() : nullptr, &curl_easy_cleanup);
  if (!handle) throw dp::Error(dp::ErrorCode::io, "libcurl could not be initialised");
  return handle;
}

std::string reason_of(CURLcode result, const char* text) {
  return without_proxy(*text != '\0' ? text : curl_easy_strerror(result));
}

class Transfer {
 public:
  explicit Transfer(const Download& what)
      : what_(what), file_(what.file, O_WRONLY | O_CREAT | O_NOFOLLOW), handle_(easy_handle()) {
    have_ = file_.end();
    if (have_ > what_.bytes) start_over();
  }

  std::optional<Failure> run() {
    if (have_ < what_.bytes) {
      CURLcode result = perform();
      if (have_ > 0 && (status() == kNoSuchRange || other_range_)) {
        start_over();
        result = perform();
      }
      if (stopped()) return std::nullopt;
      if (error_) std::rethrow_exception(error_);
      if (!refusal_.empty()) return Failure{dp::ErrorCode::data, refusal_};
      if (result != CURLE_OK) return Failure{dp::ErrorCode::io, reason_of(result, text_)};
      if (have_ < what_.bytes)
        return Failure{dp::ErrorCode::io,
                       "the server sent " + std::to_string(have_) + " of " + std::to_string(what_.bytes) + " bytes"};
    }
    file_.sync();
    return std::nullopt;
  }

 private:
  template <typename Value>
  void set(CURLoption option, Value value) {
    if (const CURLcode result = curl_easy_setopt(handle_.get(), option, value); result != CURLE_OK)
      throw dp::Error(dp::ErrorCode::io, what_.url + ": " + curl_easy_strerror(result));
  }

  CURLcode perform() {
    const std::string range = std::to_string(have_) + "-";
    const bool secure = what_.url.starts_with("https:");
    curl_easy_reset(handle_.get());
    set(CURLOPT_URL, what_.url.c_str());
    set(CURLOPT_USERAGENT, kAgent);
    set(CURLOPT_PROTOCOLS_STR, "http,https");
    set(CURLOPT_REDIR_PROTOCOLS_STR, secure ? "https" : "http,https");
    set(CURLOPT_FOLLOWLOCATION, 1L);
    set(CURLOPT_MAXREDIRS, kMostRedirects);
    set(CURLOPT_FAILONERROR, 1L);
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_CONNECTTIMEOUT, static_cast<long>(what_.patience));
    set(CURLOPT_LOW_SPEED_LIMIT, kLeastSpeed);
    set(CURLOPT_LOW_SPEED_TIME, static_cast<long>(what_.patience));
    if (have_ > 0) set(CURLOPT_RANGE, range.c_str());
    set(CURLOPT_ERRORBUFFER, text_);
    set(CURLOPT_WRITEFUNCTION, &Transfer::on_data);
    set(CURLOPT_WRITEDATA, this);
    set(CURLOPT_NOPROGRESS, 0L);
    set(CURLOPT_XFERINFOFUNCTION, &Transfer::on_progress);
    set(CURLOPT_XFERINFODATA, this);
    first_ = true, other_range_ = false, refusal_.clear(), *text_ = '\0';
    return curl_easy_perform(handle_.get());
  }

  long status() const {
    long status = 0;
    curl_easy_getinfo(handle_.get(), CURLINFO_RESPONSE_CODE, &status);
    return status;
  }

  bool stopped() const { return what_.stop.load() != 0; }

  // Whether the response has the bytes that were requested. Sets refusal_ if not.
  bool is_requested_range() {
    curl_header* header = nullptr;
    const bool one = curl_easy_header(handle_.get(), "Content-Range", 0, CURLH_HEADER, -1, &header) == CURLHE_OK &&
                     header->amount == 1;
    const auto range = one ? range_of(header->value) : std::nullopt;
    if (have_ > 0 && range && range->first == have_ && range->last == what_.bytes - 1 &&
        range->total.value_or(what_.bytes) == what_.bytes)
      return true;
    refusal_ = "the server sent " +
               (one ? "'" + std::string(header->value).substr(0, 80) + "'" : std::string("a part without its range")) +
               (have_ > 0 ? " instead of bytes " + std::to_string(have_) + "-" + std::to_string(what_.bytes - 1) + "/" +
                                std::to_string(what_.bytes)
                          : " instead of the whole file of " + std::to_string(what_.bytes) + " bytes");
    return false;
  }

  void start_over() {
    file_.clear();
    have_ = 0;
  }

  // False ends the transfer.
  bool take(const char* data, std::size_t size) {
    if (size == 0) return true;
    if (first_ && status() == kPart && !is_requested_range()) {
      other_range_ = true;
      return false;
    }
    const bool from_first_byte = have_ == 0 || (first_ && status() != kPart);
    if (from_first_byte && *data != kGzip) {
      refusal_ = *data == '<' ? "the server sent a web page instead of the file" : "the server sent no gzip file";
      return false;
    }
    if (from_first_byte && have_ > 0) start_over();
    first_ = false;
    if (size > what_.bytes - have_) {
      refusal_ = "the server sends more than the " + std::to_string(what_.bytes) + " bytes of the file";
      start_over();
      return false;
    }
    file_.write(data, size);
    have_ += size;
    return true;
  }

  static std::size_t on_data(const char* data, std::size_t, std::size_t size, void* self) {
    Transfer& transfer = *static_cast<Transfer*>(self);
    try {
      return transfer.take(data, size) ? size : 0;
    } catch (...) {  // exceptions cannot pass through libcurl
      transfer.error_ = std::current_exception();
      return 0;
    }
  }

  // libcurl calls it at least once a second.
  static int on_progress(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    const Transfer& transfer = *static_cast<Transfer*>(self);
    curl_off_t speed = 0;
    curl_easy_getinfo(transfer.handle_.get(), CURLINFO_SPEED_DOWNLOAD_T, &speed);
    transfer.what_.progress(transfer.have_, static_cast<double>(speed));
    return transfer.stopped() ? 1 : 0;
  }

  const Download& what_;
  File file_;
  Handle handle_;
  std::uint64_t have_ = 0;
  bool first_ = true;         // no data of this response was received yet
  bool other_range_ = false;  // the response has other bytes than those requested
  std::string refusal_;
  std::exception_ptr error_;
  char text_[CURL_ERROR_SIZE] = "";
};

// None if `file` now has all bytes, synced, or if `stop` is not 0. What `file` has after a failure is part of the
// file, unless the server lied. Error(io) if `file` cannot be written.
std::optional<Failure> download(const Download& what) { return Transfer(what).run(); }

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
constexpr auto kBetweenLines = std::chrono::milliseconds(200);

// The line on a terminal.
class ProgressLine {
 public:
  ProgressLine(bool on, const RemoteFile& file) : on_(on), file_(file) {}
  ~ProgressLine() {
    if (shown_ != Clock::time_point()) std::printf("\r\x1b[K"), std::fflush(stdout);
  }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(std::uint64_t done, double bytes_per_second) {
    if (!on_ || Clock::now() < shown_ + kBetweenLines) return;
    shown_ = Clock::now();
    std::printf("\r%s  %3.0f %%  %.1f MB/s\x1b[K", file_.name.c_str(),
                100. * static_cast<double>(done) / static_cast<double>(file_.bytes), bytes_per_second / 1e6);
    std::fflush(stdout);
  }

 private:
  bool on_;
  const RemoteFile& file_;
  Clock::time_point shown_{};
};

class Fetch {
 public:
  Fetch(const Source& source, const FetchOptions& options, const std::atomic<int>& stop)
      : source_(source), options_(options), stop_(stop), folder_(fs::path(options.data_path) / source.folder) {}

  void run() {
    const bool archive = !source_.unpacked.empty();
    const fs::path place = archive ? fs::path(options_.data_path) : folder_;
    fs::create_directories(place);
    File lock(place.string(), O_RDONLY | O_DIRECTORY);
    if (!lock.lock())
      throw dp::Error(dp::ErrorCode::usage, title() + "another process is downloading into " + place.string() +
                                                "; wait for it, or choose another --data-path");
    if (archive && is_complete(folder_)) {
      print(folder_.string() + "  already there");
    } else {
      for (const RemoteFile& file : source_.files) {
        fetch_file(place / file.name, file);
        if (stopped()) return;
        lock.sync();
      }
      if (archive) unpack_archive(place / source_.files.front().name);
      if (stopped()) return;
      lock.sync();
    }
    print("train on it with: dp_train --dataset " + source_.dataset +
          (options_.data_path == "./datasets" ? "" : " --data-path " + dp::path_argument(options_.data_path)));
  }

 private:
  std::string title() const { return "fetch " + source_.dataset + ": "; }
  bool stopped() const { return stop_.load() != 0; }

  void print(const std::string& text) const {
    if (!options_.quiet) std::printf("%s\n", dp::printable(text).c_str()), std::fflush(stdout);
  }
  void warn(const std::string& text) const {
    std::fprintf(stderr, "dp_train: warning: %s\n", dp::printable(title() + text).c_str());
  }

  static bool matches(const fs::path& path, const RemoteFile& file) {
    std::error_code missing;
    return fs::file_size(path, missing) == file.bytes && !missing &&
           checksum(path.string(), file.checksum.size()) == file.checksum;
  }

  void fetch_file(const fs::path& path, const RemoteFile& file) const {
    if (matches(path, file)) return print(path.string() + "  already there");
    if (fs::exists(path)) warn(path.string() + " is not the official file and is replaced");
    const auto mirrors = options_.mirror ? std::vector<std::string>{*options_.mirror} : source_.mirrors;
    for (std::size_t i = 0; i < mirrors.size(); ++i) {
      const std::string url = mirrors[i] + (mirrors[i].ends_with('/') ? "" : "/") + file.name;
      const std::string part = path.string() + ".part";
      const auto failure = fetch_part(url, part, file);
      if (stopped()) return say_how_to_continue(part);
      if (!failure) {
        fs::rename(part, path);
        return print(path.string() + "  from " + url);
      }
      const std::string what = url + ": " + failure->reason;
      if (i + 1 == mirrors.size()) throw dp::Error(failure->code, title() + what + "; " + advice(*failure, part));
      warn(what + "; trying " + mirrors[i + 1]);
    }
  }

  // The checksum of a complete part is checked; a wrong part is removed. None if stopped.
  std::optional<Failure> fetch_part(const std::string& url, const std::string& part, const RemoteFile& file) const {
    while (true) {
      std::error_code missing;
      const bool continued = fs::file_size(part, missing) > 0 && !missing;
      ProgressLine line(options_.progress && !options_.quiet && ::isatty(STDOUT_FILENO) == 1, file);
      const auto failure = download({url, part, file.bytes, options_.patience, stop_,
                                     [&](std::uint64_t done, double speed) { line.show(done, speed); }});
      if (failure || stopped()) return failure;
      const std::string found = checksum(part, file.checksum.size());
      if (found == file.checksum) return std::nullopt;
      fs::remove(part);
      // The first bytes may come from another server or version.
      if (!continued)
        return Failure{dp::ErrorCode::data, "the file has the checksum " + found + " instead of " + file.checksum};
    }
  }

  static std::string advice(const Failure& failure, const std::string& part) {
    std::error_code missing;
    const auto bytes = fs::file_size(part, missing);
    if (!missing && bytes == 0) fs::remove(part, missing);
    if (failure.code == dp::ErrorCode::data) return "try again later, or name another address with --mirror";
    return bytes > 0 && !missing
               ? "run the command again to continue after the " + std::to_string(bytes) + " bytes in " + part
               : "check the network, or name another address with --mirror";
  }

  void say_how_to_continue(const std::string& part) const {
    std::fprintf(stderr, "dp_train: %s\n",
                 dp::printable(title() + "run the command again to continue " + part).c_str());
  }

  bool is_complete(const fs::path& folder) const {
    for (const UnpackedFile& file : source_.unpacked) {
      std::error_code missing;
      if (fs::file_size(folder / file.name, missing) != file.bytes || missing) return false;
    }
    return true;
  }

  // The lock on the data path protects the temporary folder, which a killed process may have left.
  void unpack_archive(const fs::path& archive) const {
    const fs::path temporary = fs::path(options_.data_path) / ("." + source_.folder + ".unpacking");
    fs::remove_all(temporary);
    try {
      print("unpacking " + archive.string());
      unpack(archive.string(), temporary.string(), stop_);
      if (!stopped()) put_in_place(archive, temporary / source_.folder);
    } catch (...) {
      std::error_code ignored;
      fs::remove_all(temporary, ignored);
      throw;
    }
    fs::remove_all(temporary);
  }

  void put_in_place(const fs::path& archive, const fs::path& unpacked) const {
    if (!is_complete(unpacked))
      throw dp::Error(dp::ErrorCode::data, archive.string() + " does not hold the files of " + source_.dataset +
                                               "; remove it and run the command again");
    File(unpacked.string(), O_RDONLY | O_DIRECTORY).sync();
    if (!fs::exists(folder_)) {
      fs::rename(unpacked, folder_);
    } else {  // files are missing there, or have another size
      for (const fs::directory_entry& file : fs::directory_iterator(unpacked))
        fs::rename(file.path(), folder_ / file.path().filename());
      File(folder_.string(), O_RDONLY | O_DIRECTORY).sync();
    }
    fs::remove(archive);
    print(folder_.string() + "  unpacked");
  }

  const Source& source_;
  const FetchOptions& options_;
  const std::atomic<int>& stop_;
  const fs::path folder_;  // of the data set's files
};

}  // namespace

void fetch(const Source& source, const FetchOptions& options, const std::atomic<int>& stop) try {
  if (options.mirror) check_address("--mirror", *options.mirror);
  Fetch(source, options, stop).run();
} catch (const fs::filesystem_error& error) {
  throw dp::Error(dp::ErrorCode::io, "fetch " + source.dataset + ": " + error.path1().string() + ": " +
                                         error.code().message() + "; choose another --data-path");
}

void post(const std::string& address, const std::string& json) {
  const Handle handle = easy_handle();
  char text[CURL_ERROR_SIZE] = "";
  CURLcode result = CURLE_OK;
  const auto set = [&](CURLoption option, auto value) {
    if (result == CURLE_OK) result = curl_easy_setopt(handle.get(), option, value);
  };
  const std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers(
      curl_slist_append(nullptr, "Content-Type: application/json"), &curl_slist_free_all);
  set(CURLOPT_URL, address.c_str());
  set(CURLOPT_USERAGENT, kAgent);
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_HTTPHEADER, headers.get());
  set(CURLOPT_POSTFIELDS, json.c_str());
  set(CURLOPT_FAILONERROR, 1L);
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_ERRORBUFFER, text);
  set(
      CURLOPT_WRITEFUNCTION, +[](char*, std::size_t, std::size_t size, void*) { return size; });
  if (result == CURLE_OK) result = curl_easy_perform(handle.get());
  if (result != CURLE_OK) throw dp::Error(dp::ErrorCode::io, reason_of(result, text));
  constexpr long kRedirect = 300;
  long status = 0;
  curl_easy_getinfo(handle.get(), CURLINFO_RESPONSE_CODE, &status);
  if (status >= kRedirect)
    throw dp::Error(dp::ErrorCode::io, "the server answered " + std::to_string(status) +
                                           ", a redirect, which is not followed; give the final address");
}

}  // namespace dp_train
