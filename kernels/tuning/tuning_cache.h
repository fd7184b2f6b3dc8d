// The cache of measurements on disk.
#pragma once

#include <map>
#include <optional>
#include <string>

namespace dp::kernels::cuda {

// $XDG_CACHE_HOME/dp, or ~/.cache/dp. Empty if neither XDG_CACHE_HOME nor HOME is set.
std::string cache_folder();
// Appends `line` and a newline in one write, so that lines of concurrent processes do not mix. Creates the folder.
// Ignores errors.
void append_line(const std::string& file, const std::string& line);

// An exclusive lock between processes, held for the object's lifetime. Creates the file. If that fails, there is no
// lock.
class FileLock {
 public:
  explicit FileLock(const std::string& file);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int file_;
};

// Choices made by timing, kept between runs: one file per kind of machine, one line per problem.
//
//   line = check TAB microseconds TAB candidate TAB problem
//
// `check` is 16 hexadecimal digits of FNV-1a over the machine and the rest of the line. Lines with a wrong check are
// ignored: torn lines, and lines of another machine. If a problem has several lines, the last one counts.

struct TunedChoice {
  std::string candidate;    // name
  double microseconds = 0;  // per run
};

// Not thread-safe, but several processes may use one file at once. A file that cannot be read or written is ignored.
class TuningCache {
 public:
  // `machine` is everything besides the problem that times depend on: device, driver, versions. With an empty folder
  // nothing is written to disk.
  TuningCache(const std::string& folder, std::string machine);

  std::optional<TunedChoice> find(const std::string& problem) const;
  void keep(const std::string& problem, const TunedChoice& choice, bool on_disk = true);
  const std::string& file() const { return file_; }

 private:
  void read();
  std::string check_of(const std::string& rest) const;

  std::string machine_, file_;
  std::map<std::string, TunedChoice> choices_;  // by problem
};

}  // namespace dp::kernels::cuda
