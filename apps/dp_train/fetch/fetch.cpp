#include "fetch.h"

#include <dp/error.h>
#include <dp/shell.h>
#include <dp/trainer.h>
#include <fcntl.h>
#include <unistd.h>
#include <chrono>
#include <cstdio>
#include <filesystem>

#include "download.h"
#include "files.h"

namespace dp_train {
namespace {

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
  // The messages do not quote the address, which may have a password.
  if (const auto& mirror = options.mirror) {
    if (!mirror->starts_with("http://") && !mirror->starts_with("https://"))
      throw dp::Error(dp::ErrorCode::usage, "--mirror: the address must begin with http:// or https://");
    if (mirror->find_first_of(" \t\r\n\"'<>\\") != std::string::npos)
      throw dp::Error(dp::ErrorCode::usage,
                      "--mirror: the address has a space, quote, bracket or backslash; write it as %20 and the like");
  }
  Fetch(source, options, stop).run();
} catch (const fs::filesystem_error& error) {
  throw dp::Error(dp::ErrorCode::io, "fetch " + source.dataset + ": " + error.path1().string() + ": " +
                                         error.code().message() + "; choose another --data-path");
}

}  // namespace dp_train
