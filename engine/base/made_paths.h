// What a run made on disk, taken back when the run never began.
#pragma once

#include <string>
#include <vector>

namespace dp {

// Removes at its end, last first, the files and the empty folders that were noted, unless keep() was called.
class MadePaths {
 public:
  MadePaths() = default;
  ~MadePaths();
  MadePaths(const MadePaths&) = delete;
  MadePaths& operator=(const MadePaths&) = delete;

  // Makes the folder and its parents, and notes those that were not there. errno on failure, else 0.
  int make_folders(const std::string& path);
  void note_unless_there(const std::string& file);  // before the file is written
  void keep() { paths_.clear(); }

 private:
  std::vector<std::string> paths_;
};

}  // namespace dp
