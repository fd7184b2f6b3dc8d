// Choices made by timing, kept for the next run: a file for each kind of machine, a line for each problem.
//
//   line = check TAB microseconds TAB candidate TAB problem
//
// `check` is 16 hexadecimal digits of FNV-1a over the machine and the rest of the line: a torn line, or one of another machine, is none.
// Of several lines for a problem the last counts.
#pragma once

#include <map>
#include <optional>
#include <string>

namespace dp::kernels::cuda {

struct TunedChoice {
  std::string candidate;    // its name
  double microseconds = 0;  // that a run of it took
};

// By one thread at a time; by several processes at once. A file that can not be read or written is as if it were not there.
class TuningCache {
 public:
  // `machine`: everything but the problem that times depend on: device, driver, versions. An empty folder: nothing is kept on disk.
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
